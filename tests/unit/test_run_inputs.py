"""The inputs of a run on a host: the rows of its data files, the model's folder, room for checkpoints."""

import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from doctor_facts import said
from naming import has_line_naming

from ascend_quant.datasets.rows import lacking
from launch.doctor import run
from launch.doctor.facts import Facts
from launch.inputs.checkpoints import lacking_room
from launch.plan import Saving, Wanted


def told(check, **wanted: object) -> list[str]:
    """The problems that a check of the doctor tells, with their fixes."""
    return [line for level, line in said(check, Facts(Wanted(**wanted))) if level == "error"]


WANTED = ["prompt", "data_source", "reward_model"]
ROW = {
    "prompt": [{"role": "user", "content": "1+1="}],
    "data_source": "sums",
    "reward_model": {"style": "rule", "ground_truth": "2"},
}


def rows(file: Path, *given: dict[str, object]) -> str:
    """A parquet file of three right rows, then those given, which replace columns of one; returns its path."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow.parquet import write_table

    write_table(pyarrow.Table.from_pylist([*[ROW] * 3, *({**ROW, **one} for one in given)]), file, row_group_size=2)
    return str(file)


def test_a_data_file_without_a_column_is_named_with_it(tmp_path: Path):
    from pyarrow import table
    from pyarrow.parquet import write_table

    whole, lacks = rows(tmp_path / "whole.parquet"), str(tmp_path / "lacks.parquet")
    write_table(table({"question": ["p"], "data_source": ["d"]}), lacks)
    assert lacking([whole, str(tmp_path / "absent.parquet"), "/etc/passwd"], WANTED) == []
    damaged = tmp_path / "x.parquet"
    damaged.write_bytes(b"PAR1" * 4)
    line, other = told(run.inputs, needs=[whole, lacks, str(damaged)], columns=WANTED)
    assert line.startswith(lacks) and "prompt, reward_model" in line and "question" in line
    assert other.startswith(str(damaged))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("prompt", None),
        ("prompt", "1+1="),
        ("prompt", '[{"role": "user", "content": "1+1="}]'),  # the JSON of it
        ("prompt", ["1+1="]),
        ("prompt", {"role": "user", "content": "1+1="}),  # no list
        ("prompt", [{"from": "human", "value": "1+1="}]),
        ("prompt", [{"role": "user", "content": None}]),
        ("prompt", [{"role": "user", "content": 12}]),
        ("prompt", [{"role": 1, "content": "1+1="}]),
        ("reward_model", "rule"),
        ("reward_model", {"style": "rule"}),
        ("reward_model", [{"ground_truth": "2"}]),
        ("data_source", None),
    ],
)
def test_a_column_of_another_type_than_verl_reads_is_named(tmp_path: Path, column: str, values: object):
    from pyarrow import Table
    from pyarrow.parquet import write_table

    file = str(tmp_path / "train.parquet")
    write_table(Table.from_pylist([{**ROW, column: values}] * 3), file)
    (line,) = lacking([file], WANTED)
    assert line.startswith(f"{file}: {column} ")
    assert lacking([file], []) == [], "a data set of the user's own has its own columns"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("prompt", None),
        ("prompt", []),
        ("prompt", [None]),
        ("prompt", [*ROW["prompt"], {"role": None, "content": "1+1="}]),
        ("prompt", [*ROW["prompt"], {"role": "user", "content": None}]),
        ("reward_model", None),
        ("reward_model", {"style": "rule", "ground_truth": None}),
        ("data_source", None),
    ],
)
def test_rows_that_hold_nothing_are_counted_with_the_first_of_them(tmp_path: Path, column: str, value: object):
    (line,) = lacking([rows(tmp_path / "train.parquet", {column: value}, {}, {column: value})], WANTED)
    assert has_line_naming(line, column) and " 2 of 6 rows" in line and "row 3" in line


def test_an_answer_that_no_row_has_is_named(tmp_path: Path):
    from pyarrow import Table
    from pyarrow.parquet import write_table

    file = str(tmp_path / "train.parquet")
    write_table(Table.from_pylist([{**ROW, "reward_model": {"ground_truth": None}}] * 3), file)
    (line,) = lacking([file], WANTED)
    assert has_line_naming(line, file, "reward_model", "ground_truth", "3 of 3 rows")


def test_fewer_rows_than_a_run_trains_on_are_counted(tmp_path: Path):
    train, test = rows(tmp_path / "train.parquet", {}), rows(tmp_path / "test.parquet")
    assert lacking([train, test], WANTED, least={train: 4}) == []
    (line,) = lacking([train, test], WANTED, least={train: 5})
    assert has_line_naming(line, train, "4 rows", "5", "data.train_batch_size", "trainer.total_epochs")


def test_a_data_file_has_rows_and_messages_may_call_tools_and_hold_pictures(tmp_path: Path):
    from pyarrow import parquet

    call = {"role": "assistant", "content": None, "tool_calls": ["add(1, 1)"]}
    parts = [{"role": "user", "content": [{"type": "text", "text": "1+1="}]}]
    assert lacking([rows(tmp_path / "calls.parquet", {"prompt": [*ROW["prompt"], call]})], WANTED) == []
    file = str(tmp_path / "parts.parquet")
    parquet.write_table(parquet.read_table(rows(tmp_path / "r.parquet")).slice(0, 0), file)
    (line,) = lacking([file], WANTED)
    assert line.startswith(f"{file} has no rows")
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist([{**ROW, "question": parts}]).drop(["prompt"]), file)
    columns = ["question", "data_source", "reward_model"]
    assert lacking([file], columns, "question") == []
    parquet.write_table(pyarrow.Table.from_pylist([{**ROW, "question": "1+1="}]).drop(["prompt"]), file)
    assert len(lacking([file], columns, "question")) == 1


QWEN = {"num_attention_heads": 28, "num_key_value_heads": 4}
INT8 = {"quant_method": "compressed-tensors"}


@pytest.mark.parametrize(
    ("files", "ranks", "names"),
    [
        ({}, 1, ("*.safetensors",)),
        ({"config.json": QWEN}, 1, ("*.safetensors",)),
        ({"model.safetensors": {}}, 1, ("config.json",)),
        ({"config.json": QWEN, "model.bin": {}}, 1, ("model.bin",)),
        ({"adapter_config.json": {}, "adapter_model.safetensors": {}}, 1, ("adapter_model.safetensors",)),
        ({"config.json": QWEN, "adapter_model.safetensors": {}}, 1, ("adapter_model.safetensors",)),
        ({"config.json": QWEN, "model-00001-of-00002.safetensors": {}}, 1, ("model-00002-of-00002.safetensors",)),
        ({"config.json": QWEN | {"quantization_config": INT8}, "model.safetensors": {}}, 1, ("compressed-tensors",)),
        (
            {
                "config.json": QWEN,
                "model.safetensors": {},
                "hf_quant_config.json": {"quantization": {"quant_algo": "FP8"}},
            },
            1,
            ("modelopt",),
        ),
        ({"config.json": QWEN, "model.safetensors": {}}, 8, ("28", "rollout.tensor_model_parallel_size=4")),
        (
            {"config.json": {"text_config": QWEN}, "model.safetensors": {}},
            8,
            ("28", "rollout.tensor_model_parallel_size=4"),
        ),
        ({"config.json": {"num_attention_heads": 12, "num_key_value_heads": 4}, "model.safetensors": {}}, 6, ("12",)),
        ({"config.json": QWEN, "model.safetensors": {}}, 4, None),
        ({"config.json": {"num_attention_heads": 32, "num_key_value_heads": 4}, "model.safetensors": {}}, 8, None),
        ({"config.json": {}, "model.safetensors": {}}, 8, None),  # of a kind whose heads have other names
    ],
)
def test_a_model_s_folder_must_be_one_to_train_from(tmp_path: Path, files: dict, ranks: int, names):
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    found = told(run.inputs, model=str(tmp_path), tensor_parallel=ranks, needs=[str(tmp_path)])
    assert len(found) == (names is not None) and all(name in found[0] for name in names or ())


def test_a_model_that_is_not_there_stops_the_run(tmp_path: Path, monkeypatch):
    """Nothing is downloaded on stack cpu, whose table has HF_HUB_OFFLINE, unless the inventory has another value."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    gone = str(tmp_path / "mistyped")
    (line,) = told(run.inputs, model=gone, needs=[gone])
    assert has_line_naming(line, gone, "--model")
    for variables, stops in (({}, True), ({"HF_HUB_OFFLINE": "0"}, False)):
        lines = told(run.inputs, model="org/name", environment=variables)
        assert [has_line_naming(one, "org/name", "HF_HUB_OFFLINE") for one in lines] == [True] * stops
    snapshot = tmp_path / "hub/models--org--name/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    assert told(run.inputs, model="org/name") == []


def model(folder: Path) -> str:
    """Of 1000 and 24 parameters in two files; returns its path."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from safetensors.torch import save_file

    folder.mkdir()
    save_file({"a": torch.zeros(10, 100, dtype=torch.bfloat16)}, folder / "1.safetensors", {"format": "pt"})
    save_file({"b": torch.zeros(24)}, folder / "2.safetensors")
    return str(folder)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch):
    """free(bytes): as much is free on every disk."""
    usage = namedtuple("usage", "total used free")
    return lambda size: monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 50, 0, size))


def saving(folder: Path, **changes: object) -> Wanted:
    made = {"keep": None, "steps": 10, "every": 4, "epochs": 1, "batch": 2, "parameter_bytes": 12}
    saved = Saving(**{"train": "/absent.parquet", **made, **changes})
    return Wanted(out=str(folder / "runs" / "new"), model=model(folder / "model"), saving=saved)


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 3),  # steps 4, 8 and 10, the last
        ({"keep": 1}, 2),  # the old one stays until the new one is there
        ({"keep": 9}, 3),
        ({"every": 100}, 1),
    ],
)
def test_checkpoints_must_have_room(tmp_path: Path, free, changes: dict, count: int):
    """1024 parameters of 12 bytes each, so often."""
    one = saving(tmp_path, **changes)
    free(count * 1024 * 12)
    assert lacking_room(one) is None
    free(count * 1024 * 12 - 1)
    what, fix = lacking_room(one)
    assert what.startswith(f"{tmp_path}/runs/new: {count} checkpoints") and "max_actor_ckpt_to_keep" in fix
    assert told(run.out, **vars(one)) == [f"{what} | {fix}"]
    Path(one.out, "checkpoints", "global_step_4").mkdir(parents=True)  # it needs no more room
    assert lacking_room(one) is None
