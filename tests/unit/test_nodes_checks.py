"""A host's checks, against real listeners, files, and executables that answer as the tools of real hosts do."""

import os
import socket

import psutil
import pytest
from cluster_cases import node_plan

from launch.errors import LaunchError
from launch.nodes import checks, devices, ports
from launch.nodes.devices import Devices
from launch.nodes.facts import gather

# what `nvidia-smi --query-gpu=index --format=csv,noheader` prints: a number a line
NVIDIA_SMI = "#!/bin/sh\nprintf '0\\n1\\n3\\n'\n"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder that is first on PATH; tools(name, text) puts an executable there."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def make(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    return make


def test_a_taken_port_is_told_with_the_process_that_has_it():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        port, outgoing = server.getsockname()[1], client.getsockname()[1]
        lines = ports.taken({port: "dashboard", outgoing: "ray"})  # nobody listens on the other one
    assert len(lines) == 1
    assert f"port {port} (dashboard)" in lines[0]
    assert f"process {os.getpid()} of {psutil.Process().username()}: {psutil.Process().cmdline()[0]}" in lines[0]
    assert ports.taken({port: "dashboard"}) == []


def test_npus_are_counted_by_their_device_files_alone(tmp_path):
    for name in ("davinci10", "davinci2", "davinci0", "davinci_manager", "davinci2x", "null"):
        (tmp_path / name).touch()
    assert devices.found("ascend-cann9.1", tmp_path) == Devices("npu", [0, 2, 10])
    assert devices.found("cpu", tmp_path) == Devices("none", [])


def test_gpus_are_those_that_nvidia_smi_names(tools):
    tools("nvidia-smi", NVIDIA_SMI)
    assert devices.found("cuda13") == Devices("gpu", [0, 1, 3])


def test_a_driver_that_fails_is_told_in_its_own_words(tools):
    tools("nvidia-smi", "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    with pytest.raises(LaunchError, match=r"code 18: Failed to initialize NVML: Driver/library version mismatch"):
        devices.found("cuda13")


@pytest.mark.parametrize(
    ("wanted", "there", "result"),
    [
        (2, Devices("npu", [0, 2, 10]), [0, 2]),
        ([2, 10], Devices("npu", [0, 2, 10]), [2, 10]),
        (2, Devices("none", []), [0, 1]),
        (1, Devices("npu", []), "no NPU"),
        (4, Devices("npu", [0, 2, 10]), "4 devices are wanted, and this host has 3 NPU"),
        ([0, 7], Devices("gpu", [0, 1]), r"no GPU .*\[7\]: this host has \[0, 1\]"),
    ],
)
def test_devices_of_the_run(wanted, there, result):
    if isinstance(result, list):
        assert devices.chosen(wanted, there) == result
    else:
        with pytest.raises(LaunchError, match=result):
            devices.chosen(wanted, there)


def test_everything_that_is_wrong_is_told_at_once(tmp_path):
    with socket.create_server(("0.0.0.0", 0)) as server:
        plan = node_plan(
            address="203.0.113.7",  # of RFC 5737: nobody has it
            ports={"ray": server.getsockname()[1], "dashboard": 21001, "workers": "21002-21099"},
            needs=[str(tmp_path / "train.parquet"), str(tmp_path)],
            devices=3,
            stack="ascend-cann9.1",
            temp_dir="/tmp/" + "x" * 60,
        )
        facts = gather(plan.stack, plan.temp_dir) | {"shm": 64 << 20, "devices": {"kind": "npu", "numbers": [0, 1]}}
        with pytest.raises(LaunchError) as error:
            checks.check(plan, facts)
    lines = str(error.value).splitlines()
    expected = (
        "203.0.113.7",
        "3 devices are wanted",
        f"process {os.getpid()}",
        "train.parquet",
        "too long",
        "/dev/shm",
    )
    assert len(lines) == len(expected)
    for line, part in zip(lines, expected, strict=True):
        assert part in line


def test_a_right_host_has_its_wire_and_devices():
    plan = node_plan(ports={"ray": 21000, "dashboard": 21001, "workers": "21002-21099"})
    facts = gather(plan.stack, plan.temp_dir)
    checked = checks.check(plan, facts)
    assert (checked.wire.address, checked.wire.family, checked.devices) == ("127.0.0.1", "ipv4", [0])
    assert "127.0.0.1" in facts["nics"][checked.wire.nic]
    assert facts["versions"]["python"].startswith("3.")
