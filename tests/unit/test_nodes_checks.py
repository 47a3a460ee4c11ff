"""A host's checks, against real listeners, files, and executables that answer as the tools of real hosts do."""

import json
import os
import platform
import shutil
import socket
import subprocess
from collections import namedtuple
from pathlib import Path

import psutil
import pytest
from cluster_cases import node_plan
from naming import has_line_naming, line_naming
from npu_tools import A2_BOARD, A2_TABLE, A3_BOARD, A3_TABLE, one_card, write_npu_smi, write_tool

from launch import LaunchError
from launch.doctor import drivers
from launch.doctor.drivers import npu_numbers
from launch.doctor.facts import Wanted
from launch.doctor.run import files
from launch.environment import network
from launch.nodes import checks
from launch.nodes.checkpoints import lacking_room
from launch.nodes.checks import versions
from launch.nodes.ray_node import variables
from launch.plan import Saving
from launch.system import private
from launch.system.software import Import


def test_a_taken_port_is_told_with_the_process_that_has_it():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        port, outgoing = server.getsockname()[1], client.getsockname()[1]
        lines = network.taken_ports({port: "dashboard", outgoing: "ray"})  # nobody listens on the other one
    assert len(lines) == 1
    assert f"port {port} (dashboard)" in lines[0]
    assert f"process {os.getpid()} of {psutil.Process().username()}: {psutil.Process().cmdline()[0]}" in lines[0]
    assert network.taken_ports({port: "dashboard"}) == []


def test_npus_are_counted_by_their_device_files_alone(tmp_path):
    for name in ("davinci10", "davinci2", "davinci0", "davinci_manager", "davinci2x", "null"):
        (tmp_path / name).touch()
    assert npu_numbers(tmp_path) == [0, 2, 10]
    assert checks.found("none") == []


@pytest.mark.parametrize(
    ("wanted", "kind", "there", "result"),
    [
        (2, "npu", [0, 2, 10], [0, 2]),
        ([2, 10], "npu", [0, 2, 10], [2, 10]),
        (2, "none", [], [0, 1]),
        (1, "npu", [], "NPU"),
        (4, "npu", [0, 2, 10], line_naming("4 devices", "3 NPU")),
        ([0, 7], "gpu", [0, 1], line_naming("GPU", "[7]", "[0, 1]")),
    ],
)
def test_devices_of_the_run(wanted, kind, there, result):
    if isinstance(result, list):
        assert checks.chosen(wanted, kind, there) == result
    else:
        with pytest.raises(LaunchError, match=result):
            checks.chosen(wanted, kind, there)


def test_everything_that_is_wrong_is_told_at_once(tmp_path, monkeypatch):
    (tmp_path / "bad.parquet").touch()
    monkeypatch.setattr(private, "TEMPORARY", tmp_path)
    (tmp_path / f"aq-{os.geteuid()}").symlink_to("/tmp")
    with socket.create_server(("0.0.0.0", 0)) as server:
        plan = node_plan(
            address="203.0.113.7",  # of RFC 5737: nobody has it
            ports={"ray": server.getsockname()[1], "dashboard": 21001, "workers": "21002-21099"},
            needs=[str(tmp_path / "train.parquet"), "x" * 300, str(tmp_path), str(tmp_path / "bad.parquet")],
            columns=["prompt"],
            saving=saving(tmp_path, parameter_bytes=1 << 40),
            devices=3,
            stack="ascend-cann9.1",
        )
        monkeypatch.setattr(checks, "found", lambda kind: [0, 1])
        with pytest.raises(LaunchError) as error:
            checks.check(plan)
    lines = str(error.value).splitlines()
    expected = (
        "PYTHON",
        "/dev/davinci0",
        "no devices: npu-smi",
        f"process {os.getpid()}",
        "203.0.113.7",
        "3 devices",
        "train.parquet",
        "xxx",
        "bad.parquet",
        "max_actor_ckpt_to_keep",
        f"aq-{os.geteuid()}",
    )
    assert len(lines) == len(expected)
    for line, part in zip(lines, expected, strict=True):
        assert part in line


def test_a_variable_of_the_inventory_counts_in_what_the_doctor_says(tmp_path: Path):
    """A module that a run imports lies where PYTHONPATH leads, and nowhere else."""
    (tmp_path / "only_here.py").touch()
    for own, said in (({}, True), ({"PYTHONPATH": str(tmp_path)}, False)):
        plan = node_plan(layers=[("inventory", own)], imports=[Import("only_here", "the run", "install it")])
        problems = checks.find(plan)[1]
        assert any("only_here" in problem for problem in problems) == said, problems


USED = "dcmi model initialized failed, because the device is used. ret is -8020"


@pytest.mark.parametrize(
    ("folder", "script", "words"),
    [
        ("bin", f"echo '{USED}'; exit 255", ("-8020", "device-share", "`devices` in the inventory")),
        ("bin", f"echo '{USED}'", ("-8020", "device-share", "`devices` in the inventory")),
        ("sbin", "exit 0", ("/sbin/npu-smi", "PATH=$PATH:")),
    ],
)
def test_a_launch_says_why_a_host_has_no_npus(tmp_path: Path, monkeypatch, folder: str, script: str, words):
    write_tool(tmp_path / folder / "npu-smi", script)
    monkeypatch.setattr(drivers, "NPU_SMI", (str(tmp_path / folder / "npu-smi"),))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(checks, "found", lambda kind: [0])
    problems = checks.find(node_plan(stack="ascend-cann9.1"))[1]
    assert any(has_line_naming(line, *words) for line in problems), problems


@pytest.mark.parametrize(
    ("table", "board", "files", "wanted", "places"),
    [
        (one_card(0), A2_BOARD, [0], 1, "0"),
        (one_card(3), A2_BOARD, [3], 1, "0"),  # of a host with eight, a container, or a pod, with the last one or two
        (A2_TABLE, A2_BOARD, [0, 5], [5], "1"),
        (A3_TABLE, A3_BOARD, [0, 1, 14, 15], [14, 15], "2,3"),  # npu-smi knows cards 0 and 7, of two dies each
    ],
)
def test_a_host_without_card_1_gives_verl_one_that_it_has(tmp_path, monkeypatch, table, board, files, wanted, places):
    """verl 0.9.1 asks npu-smi for card 1, with `exit status 215` on such a host, before it looks at our variable."""
    device = pytest.importorskip("verl.utils.device", reason="verl is not installed")
    write_npu_smi(tmp_path, table, board)
    cann = tmp_path / f"{platform.machine()}-linux/ascend_toolkit_install.info"
    cann.parent.mkdir()
    cann.write_text("version=9.1.0\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    monkeypatch.setattr(checks, "found", lambda kind: files)
    plan = node_plan(stack="ascend-cann9.1", devices=wanted)
    checked, problems = checks.find(plan)
    assert not [line for line in problems if "npu-smi" in line], problems
    environment, _ = variables(plan, checked, os.environ)
    assert environment["ASCEND_RT_VISIBLE_DEVICES"] == places
    with pytest.raises(subprocess.CalledProcessError):
        device.get_npu_versions()
    monkeypatch.setenv("ASCEND_VISIBLE_DEVICES", environment["ASCEND_VISIBLE_DEVICES"])
    assert device.get_npu_versions()[-2:] == ("25.5.0", "9.1.0")


def test_a_right_host_has_its_wire_and_devices():
    plan = node_plan(ports={"ray": 21000, "dashboard": 21001, "workers": "21002-21099"})
    checked = checks.check(plan)
    assert (checked.wire.address, checked.wire.family, checked.devices) == ("127.0.0.1", "ipv4", [0])
    found = versions()
    assert found["Python"].startswith("3.") and found["ray"]


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
    assert checks.lacking([whole, str(tmp_path / "absent.parquet"), "/etc/passwd"], WANTED) == []
    damaged = tmp_path / "x.parquet"
    damaged.write_bytes(b"PAR1" * 4)
    line, other = checks.lacking([whole, lacks, str(damaged)], WANTED)
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
    (line,) = checks.lacking([file], WANTED)
    assert line.startswith(f"{file}: {column} ")
    assert checks.lacking([file], []) == [], "a data set of the user's own has its own columns"


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
    (line,) = checks.lacking([rows(tmp_path / "train.parquet", {column: value}, {}, {column: value})], WANTED)
    assert has_line_naming(line, column) and " 2 of 6 rows" in line and "row 3" in line


def test_an_answer_that_no_row_has_is_named(tmp_path: Path):
    from pyarrow import Table
    from pyarrow.parquet import write_table

    file = str(tmp_path / "train.parquet")
    write_table(Table.from_pylist([{**ROW, "reward_model": {"ground_truth": None}}] * 3), file)
    (line,) = checks.lacking([file], WANTED)
    assert has_line_naming(line, file, "reward_model", "ground_truth", "3 of 3 rows")


def test_fewer_rows_than_a_run_trains_on_are_counted(tmp_path: Path):
    train, test = rows(tmp_path / "train.parquet", {}), rows(tmp_path / "test.parquet")
    assert checks.lacking([train, test], WANTED, least={train: 4}) == []
    (line,) = checks.lacking([train, test], WANTED, least={train: 5})
    assert has_line_naming(line, train, "4 rows", "5", "data.train_batch_size", "trainer.total_epochs")


def test_a_data_file_has_rows_and_messages_may_call_tools_and_hold_pictures(tmp_path: Path):
    from pyarrow import parquet

    call = {"role": "assistant", "content": None, "tool_calls": ["add(1, 1)"]}
    parts = [{"role": "user", "content": [{"type": "text", "text": "1+1="}]}]
    assert checks.lacking([rows(tmp_path / "calls.parquet", {"prompt": [*ROW["prompt"], call]})], WANTED) == []
    file = str(tmp_path / "parts.parquet")
    parquet.write_table(parquet.read_table(rows(tmp_path / "r.parquet")).slice(0, 0), file)
    (line,) = checks.lacking([file], WANTED)
    assert line.startswith(f"{file} has no rows")
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist([{**ROW, "question": parts}]).drop(["prompt"]), file)
    columns = ["question", "data_source", "reward_model"]
    assert checks.lacking([file], columns, "question") == []
    parquet.write_table(pyarrow.Table.from_pylist([{**ROW, "question": "1+1="}]).drop(["prompt"]), file)
    assert len(checks.lacking([file], columns, "question")) == 1


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
    plan = node_plan(model=str(tmp_path), tensor_parallel=ranks, needs=[str(tmp_path)])
    found = [line for line in checks.find(plan)[1] if str(tmp_path) in line]
    assert len(found) == (names is not None) and all(name in found[0] for name in names or ())


def test_a_model_that_is_not_there_stops_the_run(tmp_path: Path, monkeypatch):
    """Nothing is downloaded on stack cpu, whose table has HF_HUB_OFFLINE, unless the inventory has another value."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    gone = str(tmp_path / "mistyped")
    (line,) = [one for one in checks.find(node_plan(model=gone, needs=[gone]))[1] if "mistyped" in one]
    assert "--model" in line
    for value, stops in ((None, True), ("0", False)):
        layers = [("inventory", {"HF_HUB_OFFLINE": value})] if value else []
        assert any("org/name" in one for one in checks.find(node_plan(model="org/name", layers=layers))[1]) == stops


def saving(folder: Path, **changes: object) -> Saving:
    made = {"keep": None, "steps": 10, "every": 4, "epochs": 1, "batch": 2, "parameter_bytes": 12}
    there = {"out": str(folder / "runs" / "new"), "model": model(folder / "model"), "train": "/absent.parquet"}
    return Saving(**{**there, **made, **changes})


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
    assert lacking_room(one) == []
    free(count * 1024 * 12 - 1)
    ((what, fix),) = lacking_room(one)
    assert what.startswith(f"{tmp_path}/runs/new: {count} checkpoints") and "max_actor_ckpt_to_keep" in fix
    assert files(Wanted(out=one.out, saving=one), {}).lacking_room == ((what, fix),), "the doctor says it too"
    assert not files(Wanted(out=one.out, saving=one, head=False), {}).lacking_room
    Path(one.out, "checkpoints", "global_step_4").mkdir(parents=True)  # it needs no more room
    assert lacking_room(one) == []
