"""Each check on facts made up: silent where all is well, and the right word where one thing is not."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_facts import NPU_FILES, NPUS, PYTHONS, disks, packages, said, wanted, well
from naming import has_line_naming

from launch.doctor import network
from launch.doctor.checking import findings_of
from launch.doctor.drivers import NOT_ON_PATH, Device, Devices
from launch.doctor.examination import CHECKS, examined
from launch.doctor.facts import GIB
from launch.doctor.machine import FULLEST
from launch.system.software import Import, Package, product

BRIDGE = Import("no_such_module", "the trainer", "take another recipe")
A3 = {"devices": replace(NPUS, found=tuple(replace(one, name="Ascend910") for one in NPUS.found))}
CUDA, CPU, ALONE = {"stack": "cuda13"}, {"stack": "cpu"}, {"hosts": 1, "address": None}
ON_CPU = {"packages": packages("cpu")}


def case(check: str, level: str, *words: str, run: Any = None, patched: Any = None, **facts: Any):
    """A check, the level and words of what it must say, and what differs from a host where all is well.

    What differs: in what is wanted (`run`), in what the check looks at by itself (`patched`), and in facts. Without
    words the check must say nothing.
    """
    return pytest.param(
        check, level, words, wanted(**(run or {})), patched or {}, facts, id=f"{check} {' '.join(words)}"
    )


def with_packages(**changed: Package | None) -> dict[str, Any]:
    """The packages of cann9.1, of which some are others, or taken out by None; _ stands for -."""
    found = packages("ascend-cann9.1") | {name.replace("_", "-"): package for name, package in changed.items()}
    return {"packages": {name: package for name, package in found.items() if package}}


def one(number: int, health: str, used: int | None = 0, total: int | None = 65536) -> dict[str, Any]:
    """One NPU more, which is not well."""
    return {"devices": replace(NPUS, found=(Device(number, "910B3", health, used, total), *NPUS.found))}


def link(*second: str | None) -> dict[str, Any]:
    """Two links, of which the second has this state and address."""
    return {"launch.doctor.network.link": lambda _, number: second if number else ("UP", "198.51.100.1")}


def no_devices(problem: str) -> dict[str, Any]:
    return {"devices": Devices("npu-smi", problem)}


def variable(**variables: str) -> dict[str, Any]:
    return {"variables": variables}


CANN_8 = "ascend-cann8.5"
AT_7E16 = "https://github.com/vllm-project/vllm-ascend@7e16b4a7cdb15723c63c1c0efe58672a056eace8"
OTHER_COMMIT = {
    "run": {"stack": CANN_8},
    "packages": packages(CANN_8) | {"vllm-ascend": Package("0.1.dev1+g0000000", "0000000")},
}
ONE_VISIBLE, OTHER = variable(ASCEND_RT_VISIBLE_DEVICES="1"), {"targets": [("203.0.113.1", 1)]}
PATCH = {"launch.doctor.versions.patched": lambda _: "/x/u.py"}
UNKNOWN_BUILD = {"launch.doctor.versions.chip_of_build": lambda: None}
TAKEN = {"launch.doctor.network.taken_ports": lambda _: ["port 6766"]}
NO_TOOL = {"launch.doctor.network.TOOL": "/absent"}
NO_FILE = {"launch.doctor.network.HCCN_CONFIG": Path("/absent")}
UNREACHED = {"launch.doctor.network.why_unreached": lambda _: "no answer within 3 s"}
NOEXEC = {"launch.doctor.machine.unusable": lambda _: "is mounted noexec"}
READ_ONLY = {"os.access": lambda *_: False}
GROWS = "page_size:1g,expandable_segments:True"
CASES = [
    case("versions.python", "error", sys.executable, "PYTHON", "cuda13", run=CUDA, **ON_CPU),
    case("versions.python", "error", sys.executable, "PYTHON", "ascend-cann9.1", **ON_CPU),
    case("versions.python", "warning", "davinci0", "=ascend-cann9.1", run=CPU, device_files=NPU_FILES),
    case("versions.python", "warning", "/dev/nvidia0", "=cuda13", run=CPU, device_files=["nvidia0"]),
    case("devices.present", "error", "/usr/local/dcmi:ro", **no_devices("npu-smi is not on PATH")),
    case("devices.present", "error", "device-share", "`devices`", **no_devices("the device is used. ret is -8020")),
    case("devices.present", "error", "-8005", "docker ps", **no_devices("dcmi module initialize failed. ret is -8005")),
    case("devices.present", "error", "=$PATH:/usr/local/sbin", **no_devices(f"/usr/local/sbin/npu-smi {NOT_ON_PATH}")),
    case("devices.present", "error", "--device /dev/davinci0", device_files=NPU_FILES[2:]),
    case("devices.present", "error", "--device /dev/hisi_hdc", device_files=NPU_FILES[:-1]),
    case("devices.present", "error", "2 of 2 x 910B3", "8", run={"devices": 8}),
    case("devices.present", "error", "device [3]", "[0, 1]", run={"devices": [0, 3]}),
    case("devices.present", "error", "1 of 2", "=1", run={"devices": 2, **ALONE}, **ONE_VISIBLE),
    case("devices.present", "", run={"devices": 2}, **ONE_VISIBLE),
    case("devices.present", "error", "--gpus all", devices=Devices("nvidia-smi", "not on PATH"), run=CUDA),
    case("devices.free", "error", "device 3: Alarm", **one(3, "Alarm")),
    case("devices.free", "warning", "npu-smi info -t health -i 3", **one(3, "Warning")),
    case("devices.free", "warning", "device 3", "30000 MiB", **one(3, "OK", 30000)),
    case("devices.free", "warning", "device 3", **one(3, "OK", None, None)),
    case("devices.free", "error", "64 GiB", "needs 80", run={"device_gib": 80}),
    case("devices.free", "", run={"devices": [0, 1]}, **one(3, "Alarm")),  # which is left out
    case("versions.packages", "error", "torch-npu==2.10.0.post4", **with_packages(torch_npu=Package("2.9.0"))),
    case("versions.packages", "error", "verl is not installed", **with_packages(verl=None)),
    case("versions.packages", "error", "pip install -e .", **with_packages(ascend_quant=None)),
    case("versions.packages", "error", "Python 3.11.2", "has 3.12", python="3.11.2"),
    case("versions.packages", "error", "install triton-ascend==3.2.2", **with_packages(triton=Package("3.6.0"))),
    case("versions.packages", "error", "commit 0000000", f"install vllm-ascend @ git+{AT_7E16}", **OTHER_COMMIT),
    case("versions.packages", "error", "/x/u.py", "cleanup", patched=PATCH),
    case("versions.driver", "error", "CANN 8.3.RC1", "9.1.0", cann=("8.3.RC1", "/f")),
    case("versions.driver", "error", "no CANN in /opt/x", cann=(None, "/opt/x")),
    case("versions.driver", "error", "25.0.rc1", "25.2", devices=replace(NPUS, driver="25.0.rc1")),
    case("versions.driver", "", devices=replace(NPUS, driver="27.0.0")),
    case("versions.driver", "warning", "570.1", "580", devices=Devices("nvidia-smi", driver="570.1"), run=CUDA),
    case("versions.chip", "error", "A2", "A3 (Ascend910)", **A3),
    case("versions.chip", "error", "310P3", devices=replace(NPUS, found=(Device(0, "310P3", "OK", 0, 1),))),
    case("versions.chip", "warning", "vllm-ascend", patched=UNKNOWN_BUILD),
    case("versions.chip", "", variables={"ASCEND_QUANT_CHIP": "A3"}, **A3),
    case("network.address", "error", "192.0.2.99", run={"address": "192.0.2.99"}),
    case("network.address", "error", "unset HCCL_IF_IP", run=ALONE, **variable(HCCL_IF_IP="192.0.2.12")),
    case("network.address", "warning", "127.0.0.1", "192.0.2.11", **variable(HCCL_IF_IP="192.0.2.12")),
    case("network.address", "error", "inventory", run={"environment": {"HCCL_IF_IP": "a"}}),
    case("network.address", "error", "lo", "bond0", run=ALONE, **variable(GLOO_SOCKET_IFNAME="bond")),
    case("network.ports", "error", "port 6766", "stop", patched=TAKEN),
    case("network.links", "error", "device 1: DOWN", patched=link("DOWN", "198.51.100.2")),
    case("network.links", "warning", "device 1: DOWN", patched=link("DOWN", None), **A3),
    case("network.links", "", patched=link("DOWN", None), run={"hosts": 1}),
    case("network.links", "warning", "no hccn_tool", patched=NO_TOOL),
    case("network.links", "error", "device 1", "no address", patched=link("UP", None)),
    case("network.links", "error", "/absent", patched=NO_FILE),
    case("hosts.reach", "error", "203.0.113.1 is", "firewall", run=OTHER, patched=UNREACHED),
    case("machine.shm", "error", "0.1 GiB", "--shm-size=64g", patched=disks(1 << 26, 1 << 26)),
    case("machine.shm", "warning", "2.0 GiB", "ls -lS", patched=disks(64 * GIB, 2 * GIB)),
    case("machine.tmp", "error", "noexec", "--tmpfs /tmp:exec", patched=NOEXEC),
    case("machine.tmp", "warning", "2.0 GiB", "5", patched=disks(9 * GIB, 2 * GIB)),
    case("machine.tmp", "error", "0.2 GiB", "5", patched=disks(9 * GIB, GIB // 4)),
    case("machine.tmp", "warning", "96.0%", FULLEST, patched=disks(1000 * GIB, 40 * GIB)),
    case("machine.tmp", "", patched=disks(1000 * GIB, 40 * GIB), **variable(**{FULLEST: "0.97"})),
    case("machine.memory", "warning", "900 of 1024 GiB", "needs 1000", run={"host_gib": 1000}),
    case("machine.memory", "error", "needs 2000", run={"host_gib": 2000}),
    case("machine.variables", "warning", "unset ASCEND_LAUNCH_BLOCKING", **variable(ASCEND_LAUNCH_BLOCKING="1")),
    case("machine.variables", "error", "expandable_segments", **variable(PYTORCH_NPU_ALLOC_CONF=GROWS)),
    case("machine.variables", "error", "expandable_segments", run=CUDA, **variable(PYTORCH_ALLOC_CONF=GROWS)),
    case("machine.variables", "", run=CUDA, **variable(PYTORCH_CUDA_ALLOC_CONF=GROWS)),
    case("machine.variables", "", run={"sleeps": False}, **variable(PYTORCH_NPU_ALLOC_CONF=GROWS)),
    case("run.imports", "error", BRIDGE.module, BRIDGE.fix, run={"imports": [BRIDGE]}),
    case("run.inputs", "error", "/m is", "copy", run={"model": "/m"}),
    case("run.inputs", "warning", "hf download a/m", run={"model": "a/m"}),
    case("run.inputs", "error", "a/m is", "copy", run={"model": "a/m", "stack": "cpu"}),  # which downloads nothing
    case("run.inputs", "error", "/d/gsm8k/t.parquet", "data gsm8k --to /d", run={"needs": ["/d/gsm8k/t.parquet"]}),
    case("run.inputs", "error", "/d/reward.py", "copy it", run={"needs": ["/d/reward.py"]}),
    case("run.out", "error", "/o cannot be written", run={"out": "/o"}, patched=READ_ONLY),
    case("run.out", "warning", "20.0 GiB", "50", run={"out": "/o"}, patched=disks(99 * GIB, 20 * GIB)),
    case("run.out", "error", "0.3 GiB", "--out", run={"out": "/o"}, patched=disks(99 * GIB, GIB // 3)),
]  # fmt: skip


@pytest.fixture
def all_is_well(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What checks look at by themselves: disks, memory, listeners, links, the chip of the image, FlashRL."""
    monkeypatch.setattr("shutil.disk_usage", disks(1000 * GIB, 500 * GIB)["shutil.disk_usage"])
    monkeypatch.setattr("launch.doctor.machine.memory_here", lambda: (1024 * GIB, 900 * GIB))
    monkeypatch.setattr(network, "taken_ports", lambda _: [])
    monkeypatch.setattr(network, "TOOL", "/bin/true")
    monkeypatch.setattr(network, "link", lambda _, number: ("UP", f"198.51.100.{number}"))
    monkeypatch.setattr(network, "HCCN_CONFIG", Path(__file__))
    monkeypatch.setattr("launch.doctor.versions.chip_of_build", lambda: "ascend910b1")
    monkeypatch.setattr("launch.doctor.versions.patched", lambda _: None)
    return monkeypatch


@pytest.mark.parametrize("stack", PYTHONS)
def test_nothing_is_wrong_where_all_is_well(all_is_well, stack: str):
    assert {(one.check, one.level) for one in examined(well(wanted(stack)))} == {(name, "ok") for name in CHECKS}


@pytest.mark.parametrize(("check", "level", "words", "run", "patched", "facts"), CASES)
def test_what_is_wrong_is_found(all_is_well, check, level, words, run, patched, facts):
    for name, value in patched.items():
        all_is_well.setattr(name, value)
    found = said(CHECKS[check], well(run, **facts))
    assert bool(found) == bool(words)
    assert not words or [line for is_, line in found if is_ == level and has_line_naming(line, *words)], found
    assert all(line.split(" | ")[1] for _, line in found), "each has a fix"


def test_every_check_has_a_case():
    assert set(CHECKS) == {one.values[0] for one in CASES}


def test_where_python_is_unset_that_is_the_first_finding_and_the_only_one(all_is_well):
    """The environment of stack cpu on a host with GPUs: torch, vLLM, NVML and late imports are other ones, or none."""

    def problems(facts) -> list[str]:
        return [one.check for one in examined(facts) if one.level != "ok"]

    unasked = Devices("nvidia-smi", "nvidia-ml-py is not installed here")
    facts = well(wanted("cuda13", imports=[BRIDGE]), devices=unasked, **ON_CPU)
    assert problems(facts) == ["versions.python"]
    assert problems(well(**no_devices("no npu-smi"), **ON_CPU)) == [
        "versions.python",
        "devices.present",
    ]  # the driver's
    every = well(wanted("cuda13", imports=[BRIDGE]), packages={}, devices=unasked)
    assert {"versions.packages", "run.imports", "devices.present"} <= set(problems(every))


NICS = {"lo": ["127.0.0.1"], "docker0": ["172.17.0.1"], "eth0": ["192.0.2.2", "2001:db8::2"], "ib0": ["198.51.100.2"]}


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        ("HCCL_SOCKET_IFNAME", "et", True),
        ("HCCL_SOCKET_IFNAME", "=eth0", True),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", True),
        ("NCCL_SOCKET_IFNAME", "^=lo,docker0", True),
        ("NCCL_SOCKET_IFNAME", "^lo,docker,eth,ib", False),
        ("HCCL_SOCKET_IFNAME", "=eth", False),
        ("HCCL_SOCKET_IFNAME", "wlan", False),
        ("GLOO_SOCKET_IFNAME", "eth0,docker0", True),
        ("TP_SOCKET_IFNAME", "eth", False),
        ("VLLM_HOST_IP", "2001:db8::2", True),
        ("HCCL_IF_IP", "192.0.2.9", False),
    ],
)
def test_a_variable_of_the_network_must_name_what_this_host_has(name: str, value: str, fits: bool):
    assert network.leads_somewhere(name, value, NICS) == fits


@pytest.mark.parametrize(
    ("looked", "fact"),
    [
        ("launch.doctor.drivers.devices", "devices"),
        ("launch.system.software.installed_packages", "packages"),
        ("launch.environment.network.nics", "nics"),
    ],
)
def test_checks_of_facts_that_could_not_be_gathered_say_so_and_others_go_on(all_is_well, looked: str, fact: str):
    def fails(*_: object) -> None:
        raise KeyError("MemTotal")

    all_is_well.setattr(looked, fails)
    facts = well(wanted(out="/o"))
    del vars(facts)[fact]
    failed = [one for one in findings_of(CHECKS, facts) if one.level == "error"]
    assert failed and all("KeyError: 'MemTotal'" in one.what for one in failed)
    assert len(failed) < len(CHECKS) / 2
    assert ("Python" in facts.traits) == (fact != "packages")


@pytest.mark.parametrize(
    ("chip", "name"),
    [("ascend910b4-1", "A2"), ("ascend910_9362", "A3"), ("Ascend910B2C", "A2"), ("A3", "A3"), ("ascend310p1", None)],
)
def test_products_of_chips(chip: str, name: str | None):
    assert product(chip) == name
