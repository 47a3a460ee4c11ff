"""A host's checks, against real listeners, files, and executables that answer as the tools of real hosts do."""

import os
import platform
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from cluster_cases import node_plan
from doctor_facts import well
from naming import has_line_naming
from npu_tools import A2_BOARD, A2_TABLE, A3_BOARD, A3_TABLE, one_card, write_npu_smi

from launch.doctor.drivers import Device, Devices
from launch.environment import network
from launch.nodes import checks
from launch.nodes.checks import versions
from launch.nodes.ray_node import variables
from launch.plan import NodePlan, Wanted
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


@pytest.mark.parametrize(
    ("wanted", "stack", "there", "devices", "places"),
    [
        (2, "ascend-cann9.1", [0, 2, 10], [0, 2], [0, 1]),
        ([2, 10], "ascend-cann9.1", [10, 2, 0], [2, 10], [1, 2]),
        (2, "cpu", [], [0, 1], [0, 1]),
        (1, "ascend-cann9.1", [], None, None),
        (4, "ascend-cann9.1", [0, 2, 10], None, None),
        ([0, 7], "cuda13", [0, 1], None, None),
    ],
)
def test_devices_of_the_run(wanted, stack, there, devices, places):
    found = Devices(found=tuple(Device(number, "910B3", "OK", 0, 65536) for number in there))
    assert checks.chosen(wanted, well(Wanted(stack=stack), devices=found)) == (devices, places)


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
            out=str(tmp_path),
            devices=3,
            stack="ascend-cann9.1",
        )
        monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
        lines = checks.find(plan)[1]
    expected = (
        "PYTHON",
        "/dev/davinci0",
        "no devices: npu-smi",
        "203.0.113.7",
        f"process {os.getpid()}",
        "train.parquet",
        "xxx",
        "bad.parquet",
        str(tmp_path),
        f"aq-{os.geteuid()}",
    )
    assert len(lines) == len(expected)
    for line, part in zip(lines, expected, strict=True):
        assert part in line


def test_a_variable_of_the_inventory_counts_in_what_the_doctor_says(tmp_path: Path):
    """A module that a run imports lies where PYTHONPATH leads, and nowhere else."""
    (tmp_path / "only_here.py").touch()
    module = Import("only_here", "the trainer", "take another recipe")
    for own, absent in (({}, True), ({"PYTHONPATH": str(tmp_path)}, False)):
        plan = node_plan(environment=own, imports=[Import("json", "every run", "-"), module])
        lines = checks.find(NodePlan.from_json(plan.to_json()))[1]  # as it goes to a host
        assert [has_line_naming(line, "only_here", module.who, module.fix) for line in lines] == [True] * absent


@pytest.mark.parametrize(
    ("table", "board", "wanted", "places"),
    [
        (one_card(0), A2_BOARD, 1, "0"),
        (one_card(3), A2_BOARD, 1, "0"),  # of a host with eight, a container, or a pod, with the last one or two
        (A2_TABLE, A2_BOARD, [5], "1"),
        (A3_TABLE, A3_BOARD, [14, 15], "2,3"),  # npu-smi knows cards 0 and 7, of two dies each
    ],
)
def test_a_host_without_card_1_gives_verl_one_that_it_has(tmp_path, monkeypatch, table, board, wanted, places):
    """verl 0.9.1 asks npu-smi for card 1, with `exit status 215` on such a host, before it looks at our variable."""
    device = pytest.importorskip("verl.utils.device", reason="verl is not installed")
    write_npu_smi(tmp_path, table, board)
    cann = tmp_path / f"{platform.machine()}-linux/ascend_toolkit_install.info"
    cann.parent.mkdir()
    cann.write_text("version=9.1.0\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
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
    checked, problems = checks.find(plan)
    assert problems == []
    assert (checked.wire.address, checked.wire.family, checked.devices) == ("127.0.0.1", "ipv4", [0])
    found = versions()
    assert found["Python"].startswith("3.") and found["ray"]
