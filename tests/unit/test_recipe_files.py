"""Reading recipes: what is misspelt, mistyped or missing is said with the file, the value and what is valid."""

from pathlib import Path

import pytest
import yaml
from naming import has_line_naming, line_naming

from launch.recipes import RecipeError, load, names
from launch.recipes.files import FOLDER, merged

WHOLE = {
    "name": "one",
    "summary": "a test",
    "model": {"hub": "someone/model"},
    "stack": "cuda13",
    "nodes": 1,
    "devices_per_node": 8,
    "backend": "megatron",
    "rollout": {
        "scheme": "int8",
        "tensor_parallel": 2,
        "gpu_memory_utilization": 0.5,
        "max_prompt_length": 16,
        "max_response_length": 32,
        "n": 4,
    },
    "data": {"name": "d", "train": "t.parquet", "validation": "v.parquet"},
    "memory": {"device": 80, "host": 256},
}


def write(folder: Path, name: str = "one", **changes) -> Path:
    """A recipe's file: the whole one, over which `changes` are laid."""
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(merged({**WHOLE, "name": name}, changes)))
    return file


def error(folder: Path, **changes) -> str:
    write(folder, **changes)
    with pytest.raises(RecipeError) as caught:
        load("one", folder)
    return str(caught.value)


def test_the_repositorys_recipes_are_valid():
    assert len(names()) >= 7
    for name in names():
        assert load(name).name == name


def test_the_guides_runs_are_there():
    figures = {
        name: (r := load(name)).rollout.scheme + f" {r.training.precision} {r.qat} {r.nodes}" for name in names()
    }
    assert figures.items() >= {
        ("qwen3-4b-fp8-rollout", "fp8_block bf16 None 1"),
        ("qwen3-4b-fp8", "fp8_block fp8 None 1"),
        ("qwen3-30b-a3b-fp8", "fp8_block fp8 None 2"),
        ("moonlight-16b-a3b-int4", "int4_g128 bf16 int4_g128 1"),
        ("qwen3-30b-a3b-int4", "int4_g128 bf16 int4_g128 1"),
        ("qwen3-235b-a22b-int4", "int4_g128 bf16 int4_g128 8"),
        ("kimi-k2-thinking-int4", "int4_g32 bf16 int4_g32 32"),
    }


def test_the_demo_and_shared_parts_are_no_recipes():
    others = {file.stem for file in FOLDER.glob("*.yaml")} - set(names())
    assert {name for name in others if not name.startswith("_")} == {"demo", "study"}
    for name in ("demo", "study"):
        with pytest.raises(RecipeError, match=f"no recipe '{name}'"):
            load(name)


def test_a_file_may_be_anywhere(tmp_path: Path):
    assert load(str(write(tmp_path))).rollout.n == 4


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(RecipeError, match=line_naming("'qwen3-4b-fp9'", "qwen3-4b-fp8?")):
        load("qwen3-4b-fp9")


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"bakend": "megatron"}, "bakend: … backend? … name, summary"),
        ({"rollout": {"shceme": "int8"}}, "rollout.shceme: … scheme? … scheme, "),
        (
            {"training": {"fp8": {"formt": "e4m3"}}},
            "training.fp8.formt: … format? ",
        ),
        ({"training": {"parallel": {"zz": 1}}}, "training.parallel.zz: no such key; Valid keys: tensor, "),
        ({"rollout": {"scheme": "int5"}}, "rollout.scheme: 'int5' is wrong: unknown scheme 'int5'; this version has: "),
        ({"backend": "fsdp"}, "backend: 'fsdp' is wrong: Input should be 'fsdp2' or 'megatron'"),
        ({"stack": "cuda12"}, "stack: 'cuda12' is wrong: Input should be 'cpu', 'ascend-cann8.5'"),
        ({"nodes": "2"}, "nodes: '2' is wrong"),
        ({"nodes": 0}, "nodes: 0 is wrong"),
        ({"rollout": {"n": 1}}, "rollout.n: 1 is wrong"),
        ({"rollout": {"gpu_memory_utilization": 1.5}}, "rollout.gpu_memory_utilization: 1.5 is wrong"),
        (
            {"correction": {"level": "batch"}},
            "correction.level: 'batch' is wrong: Input should be 'token' or 'sequence'",
        ),
        (
            {"model": {"numbers": {"hidden_size": 8, "num_attention_heads": 2, "kv_lora_rank": 4}}},
            "v_head_dim beside it",
        ),
        ({"qat": "int3"}, "qat: 'int3' is wrong: unknown scheme"),
        ({"model": {"folder": "one/start"}}, "is wrong: … hub, or folder"),
        ({"model": {"hub": None}}, "is wrong: … hub, or folder"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, changes: dict, said: str):
    message = error(tmp_path, **changes)
    assert has_line_naming(message, said)
    assert message.startswith(f"{tmp_path / 'one.yaml'}: ")


def test_a_recipe_is_called_as_its_file_is(tmp_path: Path):
    write(tmp_path, "two").rename(tmp_path / "one.yaml")
    with pytest.raises(RecipeError, match=r"^.*name: 'two' .*\bone$"):
        load("one", tmp_path)


def test_what_is_missing_is_said(tmp_path: Path):
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({key: WHOLE[key] for key in WHOLE if key != "memory"}))
    with pytest.raises(RecipeError, match="memory: is missing"):
        load("one", tmp_path)


def test_every_mistake_is_said_at_once(tmp_path: Path):
    assert error(tmp_path, nodes=0, stak="cpu").count(str(tmp_path / "one.yaml")) == 2


@pytest.mark.parametrize(
    "text, said",
    [
        ("- 1\n", "holds no mapping"),
        ("a: [", "is no YAML"),
        ("stack: cpu\nstack: cuda13", "'stack' is there twice in line 2"),
        ("summary: 'a\\xff'\n\xff", "cannot be read"),
        *((f"extends: {base}", "extends: ") for base in ("null", "5", "true", "[1]")),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, said: str):
    (tmp_path / "one.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(RecipeError) as caught:
        load("one", tmp_path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "one.yaml"))


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".yaml"])
def test_a_name_that_no_file_can_have(name: str):
    with pytest.raises(RecipeError, match="no recipe"):
        load(name)


def test_a_recipe_that_extends_itself_by_another_way(tmp_path: Path):
    (tmp_path / "one.yaml").write_text(f"extends: ./../{tmp_path.name}/one\n")
    with pytest.raises(RecipeError, match=line_naming("one", "itself")):
        load("one", tmp_path)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"files": {"/abs/evil.py": "launch/root.py"}}, "'/abs/evil.py' is outside"),
        ({"files": {"../../x": "launch/root.py"}}, "'../../x' is outside"),
        ({"files": {"x.py": "/etc/passwd"}}, "/etc/passwd"),
        ({"files": {"x.py": "launch/../../../etc/passwd"}}, "launch/../../../etc/passwd"),
        ({"files": {"x.py": "nothere.py"}}, "nothere.py is not there"),
        ({"files": {"x.py": "x" * 300}}, "is not there"),
        ({"model": {"hub": ""}}, "model.hub: ''"),
        ({"model": {"hub": None, "folder": " "}}, "model.folder: ' '"),
        ({"data": {"train": ""}}, "data.train: ''"),
        ({"files": {"x.py": "docs/demo.png"}}, "docs/demo.png is no text"),
        ({"environment": {"A B": "1"}}, "'A B' is no name"),
        ({"environment": {"AÄ": "1"}}, "'AÄ' is no name"),
        ({"environment": {"RAY_ADDRESS": "1"}}, "RAY_ADDRESS would tie"),
        ({"environment": {"PATH": "1"}}, "PATH … launcher"),
        ({"correction": {"level": "token", "threshold": float("inf")}}, "correction.threshold"),
        *(({"rollout": {"ignore": [f"re:{one}"]}}, "no regular expression") for one in ("*(", "(")),
        ({"rollout": {"ignore": ["re:"]}}, "rollout.ignore.0"),
        ({"rollout": {"ignore": [""]}}, "rollout.ignore.0"),
        ({"devices_per_node": 500_000_000}, "devices_per_node"),
    ],
)
def test_values_that_no_run_could_have(tmp_path: Path, changes: dict, said: str):
    assert has_line_naming(error(tmp_path, **changes), said)


@pytest.mark.parametrize("value", [123456, [123456], {"x": 123456}])
def test_a_secret_of_the_wrong_kind_is_not_shown(tmp_path: Path, value: object):
    message = error(tmp_path, environment={"WANDB_API_KEY": value})
    assert "environment.WANDB_API_KEY" in message and "123456" not in message


def test_a_long_value_is_cut(tmp_path: Path):
    assert len(error(tmp_path, stack="x" * 5000)) < 1000


def test_a_recipe_extends_others(tmp_path: Path):
    write(tmp_path, "base", verl={"a": {"b": 1, "c": 2}}, rollout={"ignore": ["x", "y"]})
    for name, tree in (
        ("middle", {"extends": "base", "name": "middle", "verl": {"a": {"b": 3}}}),
        ("top", {"extends": "middle", "name": "top", "rollout": {"ignore": ["z"]}, "correction": {"level": "token"}}),
    ):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    top = load("top", tmp_path)
    assert top.verl == {"a": {"b": 3, "c": 2}}
    assert top.rollout.ignore == ["z"]
    assert (top.rollout.n, top.correction.threshold) == (4, 2.0)


def test_a_recipe_extends_several(tmp_path: Path):
    write(tmp_path, "first", verl={"a": 1, "b": 1})
    (tmp_path / "second.yaml").write_text(yaml.safe_dump({"verl": {"b": 2, "c": 2}}))
    (tmp_path / "one.yaml").write_text(
        yaml.safe_dump({"extends": ["first", "second"], "name": "one", "verl": {"c": 3}})
    )
    assert load("one", tmp_path).verl == {"a": 1, "b": 2, "c": 3}


def test_what_is_set_is_laid_over_the_file(tmp_path: Path):
    write(tmp_path, verl={"trainer": {"save_freq": 1, "test_freq": 2}})
    changes = {"rollout.n": "16", "verl.trainer.save_freq": "5", "rollout.ignore": "[lm_head]", "qat": "null"}
    changed = load("one", tmp_path, changes)
    assert (changed.rollout.n, changed.rollout.ignore, changed.qat) == (16, ["lm_head"], None)
    assert changed.verl == {"trainer": {"save_freq": 5, "test_freq": 2}}
    assert load("one", tmp_path).rollout.n == 4


@pytest.mark.parametrize(
    "key, value, said",
    [
        ("rollout.ignored", "[]", "rollout.ignored: … ignore?"),
        ("rollout.n", "many", "rollout.n: 'many' is wrong"),
        ("rollout..n", "1", "--set rollout..n=1: "),
        ("rollout.n", "[1", "--set rollout.n=[1: the value is no YAML"),
        ("environment", "{A_KEY: 1234, A_KEY: 5}", "line 1"),
    ],
)
def test_what_is_set_is_checked_as_the_file_is(tmp_path: Path, key: str, value: str, said: str):
    write(tmp_path)
    with pytest.raises(RecipeError) as caught:
        load("one", tmp_path, {key: value})
    assert has_line_naming(str(caught.value), said) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("base, said", [("two", "leads back to itself"), ("none", "there is no ")])
def test_a_recipe_that_extends_nothing_or_itself(tmp_path: Path, base: str, said: str):
    (tmp_path / "one.yaml").write_text(f"extends: {base}\nname: one\n")
    (tmp_path / "two.yaml").write_text("extends: one\nname: two\n")
    with pytest.raises(RecipeError, match=said):
        load("one", tmp_path)
