"""Each check on facts made up: silent or content where all is well, and the right word where one thing is not."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from doctor_facts import NPU_FILES, NPUS, PYTHONS, disks, packages, said, wanted, well
from naming import has_line_naming

from launch.doctor import devices, machine, network, run, versions
from launch.doctor.checking import Check
from launch.doctor.drivers import NOT_ON_PATH, Device, Devices, Holder
from launch.doctor.examination import CHECKS, judged
from launch.doctor.examination import traits as traits_of
from launch.doctor.facts import GIB, Facts
from launch.doctor.machine import FULLEST
from launch.system.software import Import, Package, product

BRIDGE = Import("no_such_module", "the trainer", "take another recipe")
A3 = {"devices": replace(NPUS, chip="ascend910_9392")}
CUDA, CPU, ALONE = {"stack": "cuda13"}, {"stack": "cpu"}, {"hosts": 1, "address": None}


class Case(NamedTuple):
    """A check, what it must say (in the finding or its fix), and what differs.

    In facts, in what is wanted, and in what the check looks at by itself.
    """

    check: Check
    level: str
    words: tuple[str, ...]
    changed: dict[str, Any]
    run: dict[str, Any]
    patched: dict[str, Any]


def case(
    check: Check,
    level: str,
    *words: str,
    run: dict[str, Any] | None = None,
    patched: dict[str, Any] | None = None,
    **changed: Any,
) -> Case:
    return Case(check, level, words, changed, run or {}, patched or {})


def with_packages(**changed: Package | None) -> dict[str, Any]:
    """The packages of cann9.1, of which some are others, or taken out by None; _ stands for -."""
    found = packages("ascend-cann9.1") | {name.replace("_", "-"): package for name, package in changed.items()}
    return {"packages": {name: package for name, package in found.items() if package}}


def npus(**changed: Any) -> dict[str, Any]:
    return {"devices": replace(NPUS, **changed)}


def one(number: int, health: str, used: int | None = 0, total: int | None = 65536) -> dict[str, Any]:
    """One NPU more, which is not well."""
    return npus(found=(Device(number, "910B3", health, used, total), *NPUS.found))


def link(*second: str | None) -> dict[str, Any]:
    """Two links, of which the second has this state and address."""
    first = ("UP", "198.51.100.1")
    return {"launch.doctor.network.link": lambda _, number: second if number else first}


def no_devices(problem: str, files: tuple[str, ...] = NPU_FILES) -> dict[str, Any]:
    return {"devices": Devices("npu-smi", problem, files=files)}


def variable(**variables: str) -> dict[str, Any]:
    return {"variables": variables}


ON_CPU = {"packages": packages("cpu")}
PYTHON = sys.executable
UNREACHED = {"launch.doctor.network.why_unreached": lambda *_: "no answer within 3 s"}
UNUSABLE = "launch.doctor.machine.unusable"
CASES = [
    case(versions.of_stack, "error", PYTHON, "PYTHON", "cuda13", run=CUDA, **ON_CPU),
    case(versions.of_stack, "error", PYTHON, "PYTHON", "ascend-cann9.1", **ON_CPU),
    case(versions.of_stack, "warning", "davinci0", "=ascend-cann9.1", run=CPU, devices=Devices(files=NPU_FILES[:2])),
    case(versions.of_stack, "warning", "/dev/nvidia0", "=cuda13", run=CPU, devices=Devices(files=("nvidia0",))),
    case(devices.present, "error", "/usr/local/dcmi:ro", **no_devices("npu-smi is not on PATH")),
    case(devices.present, "error", "device-share", "`devices`", **no_devices("the device is used. ret is -8020")),
    case(devices.present, "error", "-8005", "docker ps", **no_devices("dcmi module initialize failed. ret is -8005")),
    case(devices.present, "error", "=$PATH:/usr/local/sbin", **no_devices(f"/usr/local/sbin/npu-smi {NOT_ON_PATH}")),
    case(devices.present, "error", "--device /dev/davinci0", **no_devices("dcmi failed", NPU_FILES[2:])),
    case(devices.present, "error", "--device /dev/hisi_hdc", **npus(files=NPU_FILES[:-1])),
    case(devices.present, "error", "2 x 910B3, driver 25.5.1", "8", run={"devices": 8}),
    case(devices.present, "error", "device [3]", "[0, 1]", run={"devices": [0, 3]}),
    case(
        devices.present, "error", "=1 leaves 1", run={"devices": 2} | ALONE, **variable(ASCEND_RT_VISIBLE_DEVICES="1")
    ),
    case(devices.present, "ok", "2 x", run={"devices": 2}, **variable(ASCEND_RT_VISIBLE_DEVICES="1")),
    case(devices.present, "error", "--gpus all", devices=Devices("NVML", "not on PATH"), run=CUDA),
    case(devices.free, "error", "device 3: Alarm", **one(3, "Alarm")),
    case(devices.free, "warning", "npu-smi info -t health -i 3", **one(3, "Warning")),
    case(devices.free, "warning", "30000 MiB", "python3 (77)", **npus(holders=(Holder(1, 77, "python3", 30000),))),
    case(devices.free, "warning", "device 3", "30000 MiB", **one(3, "OK", 30000)),
    case(devices.free, "warning", "device 3", **one(3, "OK", None, None)),
    case(devices.free, "error", "64 GiB", "needs 80", run={"device_gib": 80}),
    case(devices.free, "ok", "3 healthy", run={"devices": [0, 1, 3]}, **one(3, "OK")),
    case(devices.free, "ok", "2 healthy", run={"devices": [0, 1]}, **one(3, "Alarm")),  # which is left out
    case(versions.packages, "error", "torch-npu==2.10.0.post4", **with_packages(torch_npu=Package("2.9.0"))),
    case(versions.packages, "error", "verl is not installed", **with_packages(verl=None)),
    case(versions.packages, "error", "pip install -e .", **with_packages(ascend_quant=None)),
    case(versions.packages, "error", "Python 3.11.2", "has 3.12", python="3.11.2"),
    case(versions.packages, "error", "install triton-ascend==3.2.2", **with_packages(triton=Package("3.6.0"))),
    case(
        versions.packages,
        "error",
        "/x/u.py",
        "cleanup",
        patched={"launch.doctor.versions.patched": lambda _: "/x/u.py"},
    ),
    case(versions.driver, "error", "CANN 8.3.RC1", "9.1.0", cann=("8.3.RC1", "/f")),
    case(versions.driver, "error", "no CANN in /opt/x", cann=(None, "/opt/x")),
    case(versions.driver, "error", "25.0.rc1.b010", "CANN 9.1.0", **npus(driver="25.0.rc1.b010")),
    case(versions.driver, "ok", "27.0.0", "CANN 9.1.0", **npus(driver="27.0.0")),
    case(versions.driver, "warning", "570.1", "580", devices=Devices("NVML", driver="570.1"), run=CUDA),
    case(versions.chip, "error", "A3 (ascend910_9392)", **A3),
    case(versions.chip, "error", "ascend310p3", **npus(chip="ascend310p3")),
    case(versions.chip, "warning", "vllm-ascend", patched={"launch.doctor.versions.chip_of_build": lambda: None}),
    case(versions.chip, "ok", "A3", variables={"ASCEND_QUANT_CHIP": "A3"}, **A3),
    case(network.address, "error", "192.0.2.99", run={"address": "192.0.2.99"}),
    case(network.address, "error", "unset HCCL_IF_IP", run=ALONE, **variable(HCCL_IF_IP="192.0.2.12")),
    case(network.address, "warning", "127.0.0.1", "192.0.2.11", **variable(HCCL_IF_IP="192.0.2.12")),
    case(network.address, "error", "inventory", run={"environment": {"HCCL_IF_IP": "a"}}),
    case(network.address, "error", "lo", "bond0", run=ALONE, **variable(GLOO_SOCKET_IFNAME="bond")),
    case(
        network.ports,
        "error",
        "port 6766",
        "stop",
        patched={"launch.doctor.network.taken_ports": lambda _: ["port 6766"]},
    ),
    case(network.between, "error", "device 1: DOWN", patched=link("DOWN", "198.51.100.2")),
    case(network.between, "warning", "device 1: DOWN", patched=link("DOWN", "198.51.100.2"), **A3),
    case(network.between, "warning", "no hccn_tool", patched={"launch.doctor.network.TOOL": "/absent"}),
    case(network.between, "error", "no address: device 1", patched=link("UP", None)),
    case(network.between, "error", "/absent", patched={"launch.doctor.network.HCCN_CONFIG": Path("/absent")}),
    case(
        network.reached, "error", "203.0.113.1 is", "firewall", run={"targets": [("203.0.113.1", 1)]}, patched=UNREACHED
    ),
    case(machine.shm, "error", "64.0 MiB", "--shm-size=64g", patched=disks(1 << 26, 1 << 26)),
    case(machine.shm, "warning", "2.0 of 64.0 GiB", "ls -lS", patched=disks(64 * GIB, 2 * GIB)),
    case(machine.tmp, "error", "noexec", "--tmpfs /tmp:exec", patched={UNUSABLE: lambda _: "is mounted noexec"}),
    case(machine.tmp, "warning", "2 GiB", "5", patched=disks(9 * GIB, 2 * GIB)),
    case(machine.tmp, "error", "0 GiB", "5", patched=disks(9 * GIB, GIB // 4)),
    case(machine.tmp, "warning", "96.0%", FULLEST, patched=disks(1000 * GIB, 40 * GIB)),
    case(machine.tmp, "ok", "40 GiB", patched=disks(1000 * GIB, 40 * GIB), variables={FULLEST: "0.97"}),
    case(machine.memory, "warning", "900 of 1024 GiB", "needs 1000", run={"host_gib": 1000}),
    case(machine.memory, "error", "needs 2000", run={"host_gib": 2000}),
    case(machine.variables, "warning", "unset ASCEND_LAUNCH_BLOCKING", **variable(ASCEND_LAUNCH_BLOCKING="1")),
    case(
        machine.variables,
        "error",
        "export PYTORCH_NPU_ALLOC_CONF=page_size:1g",
        **variable(PYTORCH_NPU_ALLOC_CONF="page_size:1g,expandable_segments:True"),
    ),
    case(run.imports, "error", BRIDGE.module, BRIDGE.fix, run={"imports": [BRIDGE]}),
    case(run.inputs, "error", "/m is", "copy", run={"model": "/m"}),
    case(run.inputs, "warning", "hf download a/m", run={"model": "a/m"}),
    case(run.inputs, "error", "a/m is", "copy", run={"model": "a/m", "stack": "cpu"}),  # which downloads nothing
    case(run.inputs, "error", "/d/gsm8k/t.parquet", "data gsm8k --to /d", run={"needs": ["/d/gsm8k/t.parquet"]}),
    case(run.inputs, "error", "/d/reward.py", "copy it", run={"needs": ["/d/reward.py"]}),
    case(run.out, "error", "/o cannot be written", run={"out": "/o"}, patched={"os.access": lambda *_: False}),
    case(run.out, "warning", "20 GiB free for /o", "50", run={"out": "/o"}, patched=disks(99 * GIB, 20 * GIB)),
    case(run.out, "error", "0 GiB free for /o", "--out", run={"out": "/o"}, patched=disks(99 * GIB, GIB // 3)),
]


@pytest.fixture
def all_is_well(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What checks look at by themselves: disks, memory, listeners, links, the chip of the image, FlashRL."""
    monkeypatch.setattr("shutil.disk_usage", disks(1000 * GIB, 500 * GIB)["shutil.disk_usage"])
    monkeypatch.setattr(machine, "memory_here", lambda: (1024 * GIB, 900 * GIB))
    monkeypatch.setattr(network, "taken_ports", lambda _: [])
    monkeypatch.setattr(network, "TOOL", "/bin/true")
    monkeypatch.setattr(network, "link", lambda _, number: ("UP", f"198.51.100.{number}"))
    monkeypatch.setattr(network, "HCCN_CONFIG", Path(__file__))
    monkeypatch.setattr(versions, "chip_of_build", lambda: "ascend910b1")
    monkeypatch.setattr(versions, "patched", lambda _: None)
    return monkeypatch


@pytest.mark.parametrize("stack", PYTHONS)
def test_nothing_is_wrong_where_all_is_well(all_is_well, stack: str):
    findings = [finding for check in CHECKS for finding in check(well(wanted(stack)))]
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert len(findings) > 5


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.check.name)
def test_what_is_wrong_is_found(all_is_well, case: Case):
    for name, value in case.patched.items():
        all_is_well.setattr(name, value)
    found = said(case.check, well(wanted(**case.run), **case.changed))
    assert [line for level, line in found if level == case.level and has_line_naming(line, *case.words)], found
    assert all(line.split(" | ")[1] for level, line in found if level != "ok"), "each has a fix"


def test_every_check_has_a_case():
    assert {check.name for check in CHECKS} == {case.check.name for case in CASES}


def test_where_python_is_unset_that_is_the_first_finding_and_the_only_one(all_is_well):
    """The environment of stack cpu on a host with GPUs: torch, vLLM, NVML and late imports are other ones, or none."""
    unasked = Devices("NVML", "nvidia-ml-py is not installed here")
    facts = well(wanted("cuda13", imports=[BRIDGE]), devices=unasked, **ON_CPU)
    found = [one for one in judged(CHECKS, facts) if one.level != "ok"]
    assert [(one.level, one.check) for one in found] == [("error", "versions.python")]
    assert CHECKS[0] is versions.of_stack
    npus = judged(CHECKS, well(devices=no_devices("no npu-smi")["devices"], **ON_CPU))
    assert [one.check for one in npus if one.level == "error"] == ["versions.python", "devices.present"]  # the driver's
    assert len(judged(CHECKS, well(wanted("cuda13"), packages={}, devices=unasked))) > 6, "all is said else"


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


def test_a_pinned_commit_is_seen_by_installer_or_version():
    stack = "ascend-cann8.5"
    found = packages(stack) | {"vllm-ascend": Package("0.1.dev1+g0000000", "0000000")}
    (level, line), *_ = said(versions.packages, well(wanted(stack), packages=found))
    assert level == "error" and has_line_naming(line, "vllm-ascend", "commit 0000000", "7e16b4a7cdb1")
    assert "install vllm-ascend @ git+https://github.com/vllm-project/vllm-ascend@7e16b4a7cdb15723" in line


def test_expandable_segments_are_fine_without_sleep_mode():
    facts = well(wanted(sleeps=False), variables={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"})
    assert said(machine.variables, facts) == []


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
    facts: Facts = well(wanted(model="a/m", out="/o"))
    del vars(facts)[fact]
    failed = [one for check in CHECKS for one in check(facts) if one.level == "error"]
    assert failed and all("KeyError: 'MemTotal'" in one.what for one in failed)
    assert len(failed) < len(CHECKS) / 2
    assert ("Python" in traits_of(facts)) == (fact != "packages")


@pytest.mark.parametrize(
    ("chip", "name"),
    [("ascend910b4-1", "A2"), ("ascend910_9362", "A3"), ("Ascend910B2C", "A2"), ("A3", "A3"), ("ascend310p1", None)],
)
def test_products_of_chips(chip: str, name: str | None):
    assert product(chip) == name


def test_one_host_alone_needs_no_links_between_hosts(all_is_well):
    all_is_well.setattr(network, "link", lambda *_: ("DOWN", None))
    assert said(network.between, well(wanted(hosts=1))) == []
