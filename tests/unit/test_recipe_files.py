"""Reading recipes: what is misspelt, mistyped or missing is said with the file, the value and what is valid."""

from pathlib import Path

import pytest
import yaml
from naming import has_line_naming, line_naming

from launch import ROOT, LaunchError
from launch.environment.resolve import TABLE, rows
from launch.recipes import Paths, load, names, resolve
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
    with pytest.raises(LaunchError) as caught:
        load("one", folder)
    return str(caught.value)


def test_the_repositorys_recipes_are_valid():
    assert len(names()) >= 7
    for name in names():
        assert load(name).name == name


def test_a_shipped_recipe_has_no_variable_of_another_stack():
    for name in names():
        recipe = load(name)
        others = {row.name for row in TABLE} - {row.name for row in rows(recipe.stack)}
        assert not others & set(recipe.environment), name


def test_a_file_may_be_anywhere(tmp_path: Path):
    assert load(str(write(tmp_path))).rollout.n == 4


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(LaunchError, match=line_naming("'qwen3-4b-fp9'", "qwen3-4b-fp8")):
        load("qwen3-4b-fp9")
    for name, command in (("demo", "./run.sh demo"), ("study", "./run.sh bench study")):  # settings of their own
        with pytest.raises(LaunchError, match=line_naming(name, command)):
            load(name)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"bakend": "megatron"}, "bakend: … backend? … name, summary"),
        ({"rollout": {"shceme": "int8"}}, "rollout.shceme: … scheme? … scheme, "),
        ({"rollout": {"scheme": "int5"}}, "rollout.scheme: 'int5' is wrong: unknown scheme 'int5'; this version has: "),
        ({"backend": "fsdp"}, "backend: 'fsdp' is wrong: Input should be 'fsdp2' or 'megatron'"),
        ({"stack": "cuda12"}, "stack: 'cuda12' is wrong: Input should be 'cpu', 'ascend-cann8.5'"),
        ({"nodes": "2"}, "nodes: '2' is wrong"),
        ({"rollout": {"gpu_memory_utilization": 1.5}}, "rollout.gpu_memory_utilization: 1.5 is wrong"),
        ({"model": {"folder": "one/start"}}, "is wrong: … hub, or folder"),
        ({"files": {"x.py": "nothere.py"}}, "files: … nothere.py"),
        ({"data": {"train": ""}}, "data.train: ''"),
        ({"environment": {"A B": "1"}}, "'A B'"),
        ({"environment": {"RAY_ADDRESS": "1"}}, "RAY_ADDRESS"),
        ({"environment": {"PATH": "1"}}, "PATH … launcher"),
        ({"correction": {"level": "token", "threshold": float("inf")}}, "correction.threshold"),
        ({"memory": None}, "memory: None is wrong"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, changes: dict, said: str):
    message = error(tmp_path, **changes)
    assert has_line_naming(message, said)
    assert message.startswith(f"{tmp_path / 'one.yaml'}: ")


@pytest.mark.parametrize("value", [123456, [123456], {"x": 123456}])
def test_a_secret_of_the_wrong_kind_is_not_shown(tmp_path: Path, value: object):
    message = error(tmp_path, environment={"WANDB_API_KEY": value})
    assert "environment.WANDB_API_KEY" in message and "123456" not in message


def test_a_recipe_extends_others(tmp_path: Path):
    write(tmp_path, "base", verl={"a": {"b": 1, "c": 2}}, rollout={"ignore": ["x", "y"]})
    for name, tree in (
        ("last", {"verl": {"a": {"c": 4}}}),
        ("middle", {"extends": ["base", "last"], "name": "middle", "verl": {"a": {"b": 3}}}),
        ("top", {"extends": "middle", "name": "top", "rollout": {"ignore": ["z"]}, "correction": {"level": "token"}}),
    ):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    top = load("top", tmp_path)
    assert top.verl == {"a": {"b": 3, "c": 4}}
    assert top.rollout.ignore == ["z"]
    assert (top.rollout.n, top.correction.threshold) == (4, 2.0)


def test_a_correction_gives_way_to_an_exact_trainer_unless_it_is_asked_for_beside_it(tmp_path: Path):
    """Whoever asks for one after the other, or takes the exact trainer back, has what was asked for last."""
    token, exact = {"level": "token", "threshold": 3.0}, {"extends": "one", "qat": "int8_exact"}
    write(tmp_path, backend="fsdp2", correction=token)
    for name, tree in (
        ("given", exact),
        ("general", {"correction": {"bypass": True}}),
        ("both", {"extends": ["given", "general"]}),  # a part that several recipes share
        ("asked", {**exact, "correction": token}),
        ("above", {"extends": "given", "correction": token}),
        ("under", {"extends": "above"}),
    ):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    for name in ("given", "both"):
        assert (load(name, tmp_path).qat, load(name, tmp_path).correction) == ("int8_exact", None)
    assert load("one", tmp_path, {"qat": "int8_exact"}).correction is None
    for changes in ({"qat": "null"}, {"qat": "int8"}):
        assert load("given", tmp_path, changes).correction.threshold == 3.0
    assert load("given", tmp_path, {"qat": "null", "correction.level": "sequence"}).correction.level == "sequence"
    for name, changes, where in (
        ("asked", {}, "asked"),
        ("above", {}, "above"),
        ("under", {}, "above"),
        ("one", {"correction.bypass": "true", "qat": "int8_exact"}, "one"),
        ("given", {"correction": "{level: token}"}, "given"),
    ):
        with pytest.raises(LaunchError, match=line_naming(f"{where}.yaml: correction", "int8_exact")):
            load(name, tmp_path, changes)


@pytest.mark.parametrize(
    ("file", "base"),
    [
        ("own.yaml", "addition-int8"),
        ("own.yaml", "addition-int8.yaml"),
        ("own.yaml", str(FOLDER / "addition-int8.yaml")),
        ("addition-int8.yaml", "addition-int8"),  # the shipped one, and not itself
        ("deep/own.yaml", "../near"),
    ],
)
def test_a_recipe_of_the_users_extends_a_shipped_one_by_its_name(tmp_path: Path, file: str, base: str):
    (tmp_path / "near.yaml").write_text("extends: addition-int8\n")
    own = tmp_path / file
    own.parent.mkdir(exist_ok=True)
    own.write_text(yaml.safe_dump({"extends": base, "name": own.stem, "rollout": {"n": 3}}))
    shipped, found = load("addition-int8"), load(str(own))
    assert (found.rollout.n, found.verl, found.data) == (3, shipped.verl, shipped.data)


def test_what_lies_beside_a_recipe_comes_before_what_is_shipped(tmp_path: Path):
    write(tmp_path, "addition-int8", summary="beside")
    (tmp_path / "own.yaml").write_text("extends: addition-int8\nname: own\n")
    assert load(str(tmp_path / "own.yaml")).summary == "beside"


def test_files_of_a_recipe_lie_beside_it_or_in_the_repository_or_have_a_whole_path(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    reward, other = tmp_path / "mine" / "reward.py", tmp_path / "other.py"
    for file in (reward, other):
        file.write_text(f"# {file.name}\n")
    said = {"reward.py": "reward.py", "other.py": str(other), "demo.py": "launch/demo/reward.py"}
    write(tmp_path / "mine", "own", files=said)
    found = resolve(load("mine/own.yaml"), Paths("/m", "/d", "/o")).files
    assert found == {"reward.py": reward, "other.py": other, "demo.py": ROOT / "launch/demo/reward.py"}
    write(tmp_path / "mine", "own", files={"reward.py": "../nothing.py"})
    with pytest.raises(LaunchError, match=line_naming("files", "../nothing.py")):
        load("mine/own.yaml")


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
        ("rollout..n", "1", "rollout.: no such key"),
        ("rollout.n", "[1", "--set rollout.n: "),
        ("rollout.n", "010", "--set rollout.n: "),
        ("rollout.n", "1:30", "--set rollout.n: "),
        ("verl.trainer", "{save_freq: 1:30}", "--set verl.trainer: "),
        ("environment", "{A_KEY: 1234, A_KEY: 5}", "--set environment: "),
    ],
)
def test_what_is_set_is_checked_as_the_file_is(tmp_path: Path, key: str, value: str, said: str):
    write(tmp_path)
    with pytest.raises(LaunchError) as caught:
        load("one", tmp_path, {key: value})
    assert has_line_naming(str(caught.value), said) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("number", ["010", "1:30"])
def test_a_number_that_is_not_plain_decimal_is_told_by_its_line(tmp_path: Path, number: str):
    file = write(tmp_path)
    file.write_text(file.read_text().replace("\n  n: 4\n", f"\n  n: {number}\n"))
    line = file.read_text().splitlines().index(f"  n: {number}") + 1
    with pytest.raises(LaunchError, match=line_naming(file, f"line {line}")):
        load("one", tmp_path)


def test_a_recipe_is_called_by_its_file_whatever_it_extends(tmp_path: Path):
    (tmp_path / "bare.yaml").write_text("extends: addition-int8\n")
    (tmp_path / "other.yaml").write_text("extends: bare\nname: misnamed\n")
    (tmp_path / "over.yaml").write_text("extends: [other, addition-bf16]\n")
    assert [load(str(tmp_path / f"{name}.yaml")).name for name in ("bare", "over")] == ["bare", "over"]
    with pytest.raises(LaunchError, match=line_naming("other.yaml: name:", "'misnamed'")):
        load("other", tmp_path)


@pytest.mark.parametrize(
    "base, said", [("two", line_naming("one.yaml: extends:", "two")), ("addition-int9", "addition-int8")]
)
def test_a_recipe_that_extends_nothing_or_itself(tmp_path: Path, base: str, said: str):
    (tmp_path / "one.yaml").write_text(f"extends: {base}\nname: one\n")
    (tmp_path / "two.yaml").write_text("extends: one\nname: two\n")
    with pytest.raises(LaunchError, match=said):
        load("one", tmp_path)


def test_a_file_that_is_no_mapping_is_named(tmp_path: Path):
    (tmp_path / "one.yaml").write_text("- 1")
    with pytest.raises(LaunchError, match=line_naming(tmp_path / "one.yaml")):
        load("one", tmp_path)
