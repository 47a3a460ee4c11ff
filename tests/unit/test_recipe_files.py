"""Loading recipes: what is misspelt, mistyped or missing is said with the file, the value and what is valid."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from naming import has_line_naming, line_naming

from launch import LaunchError
from launch.environment.resolve import TABLE, rows
from launch.recipes import Paths, load, names, resolve

WHOLE = """# @package _global_
defaults:
  - /recipe/base/common
  - override /stack: cuda13
  - override /backend: megatron
  - _self_
recipe:
  name: one
  summary: a test
  model: {hub: someone/model}
  data: {name: d, train: t.parquet, validation: v.parquet}
  memory: {device: 80, host: 256}
trainer: {nnodes: 1, n_gpus_per_node: 8}
data: {max_prompt_length: 16, max_response_length: 32, train_batch_size: 512}
actor_rollout_ref:
  rollout: {tensor_model_parallel_size: 2, gpu_memory_utilization: 0.5, n: 4}
  actor: {ppo_mini_batch_size: 256}
"""
ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"


def write(folder: Path, name: str = "one", text: str = WHOLE) -> str:
    """Write a user's recipe, and return its file."""
    file = folder / f"{name}.yaml"
    file.write_text(text.replace("name: one", f"name: {name}"))
    return str(file)


def above(folder: Path, name: str, defaults: Sequence[str], tree: Mapping[str, Any]) -> str:
    """Write a recipe that is laid over others."""
    tree = {"defaults": [*defaults, "_self_"], **tree, "recipe": {"name": name, **tree.get("recipe", {})}}
    return write(folder, name, f"# @package _global_\n{yaml.safe_dump(tree)}")


def error(folder: Path, *changes: str) -> str:
    """Return the error of a recipe with these changes, each of which has a value that Hydra can read."""
    file = write(folder)
    with pytest.raises(LaunchError) as caught:
        load(file, changes)
    return str(caught.value)


def test_shipped_recipes_are_valid_and_have_no_variable_of_another_stack():
    assert len(names()) >= 46
    for name in names():
        recipe = load(name)
        others = {row.name for row in TABLE} - {row.name for row in rows(recipe.stack)}
        assert recipe.name == name and not others & set(recipe.environment), name


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(LaunchError, match=line_naming("'qwen3-4b-fp9'", "qwen3-4b-fp8")):
        load("qwen3-4b-fp9")
    for name, command in (("demo", "./run.sh demo"), ("study", "./run.sh bench study")):  # settings of their own
        with pytest.raises(LaunchError, match=line_naming(name, command)):
            load(name)
    with pytest.raises(LaunchError, match=line_naming("nothing.yaml")):
        load("nothing.yaml")


@pytest.mark.parametrize(
    "change, said",
    [
        ("recipe.modle.hub=a", "recipe.modle: … model? … name, summary"),
        ("recipe.memory.divice=8", "recipe.memory.divice: … device?"),
        ("shceme=int8", "shceme: … scheme, "),
        ("scheme=int5", "int5 … int8"),
        (f"{ROLLOUT}.engine_kwargs.vllm.hf_overrides.quantization_config.scheme=int5", "scheme: 'int5' … int8"),
        ("backend=fsdp", "fsdp … fsdp2"),
        ("stack=cuda12", "cuda12 … cuda13"),
        ("trainer.nnodes='2'", "trainer.nnodes: '2' is wrong"),
        (f"{ROLLOUT}.gpu_memory_utilization=1.5", "gpu_memory_utilization: 1.5 is wrong"),
        ("algorithm.rollout_correction.rollout_is_threshold=0", "rollout_is_threshold: 0 is wrong"),
        (f"{ROLLOUT}.n=many", f"{ROLLOUT}.n: 'many' is wrong"),
        ("~trainer.nnodes", "trainer.nnodes: is missing"),
        ("recipe.model.folder=one/start", "recipe.model: … hub, or folder"),
        ("recipe.files.x=nothere.py", "recipe.files.x: … nothere.py"),
        ("recipe.data.train=''", "recipe.data.train: ''"),
        ("recipe.environment.RAY_ADDRESS='1'", "RAY_ADDRESS"),
        ("recipe.environment.PATH='1'", "PATH … launcher"),
        ("recipe.memory=null", "recipe.memory: None is wrong"),
        ("recipe.name=two", "recipe.name: 'two' … one"),
        ("recipe.data.train=${nothing}", "recipe.data.train … nothing"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, change: str, said: str):
    message = error(tmp_path, change)
    assert has_line_naming(message, said) and len(message.splitlines()) == 1


@pytest.mark.parametrize("value", ["123456", "[123456]", "{x: 123456}", "'hunter", "[123456"])
def test_a_secret_of_the_wrong_kind_is_not_shown(tmp_path: Path, value: str):
    message = error(tmp_path, f"recipe.environment.WANDB_API_KEY={value}")
    assert "environment.WANDB_API_KEY" in message and not {"123456", "hunter"} & set(message)
    assert "123456" not in message and "hunter" not in message


def test_a_recipe_is_laid_over_others_of_the_user_and_shipped_ones(tmp_path: Path):
    write(tmp_path, "base", WHOLE + "trainer_of_mine: {b: 1, c: 2, list: [x, y]}\n")
    above(tmp_path, "middle", ["base"], {"trainer_of_mine": {"b": 3, "list": ["z"]}})
    top = above(tmp_path, "top", ["middle", {"override /correction": "token"}], {"data": {"max_prompt_length": 20}})
    recipe = load(top)
    assert recipe.verl["trainer_of_mine"] == {"b": 3, "c": 2, "list": ["z"]}
    assert (recipe.rollout.max_prompt_length, recipe.rollout.max_response_length) == (20, 32)
    assert recipe.setting(f"{ROLLOUT}.max_model_len") == 52 and recipe.threshold == 2.0
    for base in ("addition-int8", "/recipe/addition-int8"):
        shipped, own = load("addition-int8"), load(above(tmp_path, "own", [base], {"data": {"max_prompt_length": 9}}))
        assert own.data == shipped.data and own.rollout.max_prompt_length == 9


def test_files_of_a_recipe_lie_beside_it_or_have_a_whole_path(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    reward, other = tmp_path / "mine" / "reward.py", tmp_path / "other.py"
    for file in (reward, other):
        file.write_text(f"# {file.name}\n")
    said = {"reward.py": "reward.py", "other.py": str(other)}
    write(tmp_path / "mine")
    above(tmp_path / "mine", "own", ["one"], {"recipe": {"files": said}})
    assert load("mine/own.yaml").files == {"reward.py": str(reward), "other.py": str(other)}


def test_what_a_user_changes_is_laid_over_the_file(tmp_path: Path):
    file = write(tmp_path)
    quantization = f"{ROLLOUT}.engine_kwargs.vllm.hf_overrides.quantization_config"
    changed = load(file, [f"{ROLLOUT}.n=16", f"{quantization}.ignore=[lm_head]", f"{ROLLOUT}.n=8", "kv=int8"])
    assert (changed.rollout.n, changed.rollout.ignore, changed.rollout.kv_cache) == (8, ["lm_head"], "int8")
    assert changed.rollout.scheme == "int8" and load(file).rollout.n == 4


@pytest.mark.parametrize("change", ["nodes", "-cn=x", "trainer"])
def test_what_is_no_setting_is_named(tmp_path: Path, change: str):
    assert has_line_naming(error(tmp_path, change), f"'{change}'", "KEY=VALUE")


def test_a_file_that_is_no_config_is_named(tmp_path: Path):
    for text in ("- 1\n", "recipe: [\n", "defaults: [nothing]\n"):
        with pytest.raises(LaunchError, match=line_naming(tmp_path / "one.yaml")):
            load(write(tmp_path, text=text))


def test_a_file_of_the_older_kind_gives_what_its_new_form_gives(tmp_path: Path, capsys):
    (tmp_path / "my.py").touch()
    older = {
        "extends": "addition-int8",
        "stack": "cpu",
        "summary": "mine",
        "nodes": 1,
        "files": {"my.py": "my.py"},
        "environment": {"A": "1"},
        "verl": {"data": {"shuffle": True}, "trainer": {"total_training_steps": None}},
    }
    newer = {
        "defaults": ["addition-int8", {"override /stack": "cpu"}, "_self_"],
        "recipe": {"name": "one", "summary": "mine", "files": {"my.py": "my.py"}, "environment": {"A": "1"}},
        "data": {"shuffle": True},
        "trainer": {"nnodes": 1, "total_training_steps": None},
    }
    made = load(write(tmp_path, text=yaml.safe_dump(older)))
    assert has_line_naming(capsys.readouterr().err, "one.yaml", "defaults: [addition-int8, _self_]")
    wanted = load(write(tmp_path, text=f"# @package _global_\n{yaml.safe_dump(newer)}"))
    assert made.files == wanted.files and (made.name, made.nodes) == ("one", 1)
    first, second = (sorted(resolve(one, Paths("/m", "/d", "/o"))) for one in (made, wanted))
    assert first == second and made.environment == wanted.environment


def test_a_file_of_the_older_kind_that_extends_several_is_told_how_it_is_written_now(tmp_path: Path):
    for base in ("[addition-int8, addition-bf16]", "_int8"):
        with pytest.raises(LaunchError, match=line_naming("one.yaml: extends", "[RECIPE, _self_]")):
            load(write(tmp_path, text=f"extends: {base}\nrollout: {{n: 3}}\n"))
