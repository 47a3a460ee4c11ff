"""Each check on facts made up: silent or content where all is well, and the right word where one thing is not."""

from dataclasses import fields, replace
from typing import Any, NamedTuple

import pytest
from doctor_facts import NPU_FILES, NPUS, PYTHONS, packages, said, wanted, well
from naming import has_line_naming

from launch.doctor import devices, machine, network, run, versions
from launch.doctor.checking import Check
from launch.doctor.drivers import NOT_ON_PATH
from launch.doctor.examination import CHECKS, judged
from launch.doctor.examination import traits as traits_of
from launch.doctor.facts import GIB, Device, Devices, Facts, Files, Holder, Link, Links, Network
from launch.doctor.machine import FULLEST
from launch.system.software import Import, Package, product

BRIDGE = Import("megatron.bridge", "the trainer", "take another recipe")
SOFTWARE, NETWORK, MACHINE = well().software, well().network, well().machine
A3 = replace(NPUS, chip="ascend910_9392")
CUDA = {"stack": "cuda13"}


class Case(NamedTuple):
    """A check, what it must say (in the finding or its fix), and what differs: on the host, and in what is wanted."""

    check: Check
    level: str
    words: tuple[str, ...]
    changed: dict[str, Any]
    run: dict[str, Any]


def case(check: Check, level: str, *words: str, run: dict[str, Any] | None = None, **changed: Any) -> Case:
    return Case(check, level, words, changed, run or {})


def with_packages(**changed: Package | None) -> dict[str, Any]:
    """The software of cann9.1 with packages replaced, or taken out by None; _ stands for -."""
    found = packages("ascend-cann9.1") | {name.replace("_", "-"): package for name, package in changed.items()}
    return {"software": replace(SOFTWARE, packages={name: package for name, package in found.items() if package})}


def npus(**changed: Any) -> dict[str, Any]:
    return {"devices": replace(NPUS, **changed)}


def one(number: int, health: str, used: int | None = 0, total: int | None = 65536) -> dict[str, Any]:
    """One NPU more, which is not well."""
    return npus(found=(Device(number, "910B3", health, used, total), *NPUS.found))


def software(**changed: Any) -> dict[str, Any]:
    return {"software": replace(SOFTWARE, **changed)}


def on_network(**changed: Any) -> dict[str, Any]:
    return {"network": replace(NETWORK, **changed)}


def link(**changed: Any) -> dict[str, Any]:
    """Two links, of which the second differs."""
    two = (Link(0, "UP", "198.51.100.1"), replace(Link(1, "UP", "198.51.100.2"), **changed))
    return {"links": Links(two)}


def on_machine(**changed: Any) -> dict[str, Any]:
    return {"machine": replace(MACHINE, **changed)}


def no_devices(problem: str, files: tuple[str, ...] = NPU_FILES) -> dict[str, Any]:
    return {"devices": Devices("npu-smi", problem, files=files)}


def variable(**variables: str) -> dict[str, Any]:
    return {"variables": variables}


ALONE = {"hosts": 1}
ON_CPU = {"software": replace(SOFTWARE, packages=packages("cpu"), executable="/x/.venv/bin/python")}
CASES = [
    case(versions.of_stack, "error", "/x/.venv/bin/python", "PYTHON", "cuda13", run=CUDA, **ON_CPU),
    case(versions.of_stack, "error", "/x/.venv/bin/python", "PYTHON", "ascend-cann9.1", **ON_CPU),
    case(
        versions.of_stack,
        "warning",
        "/dev/davinci0",
        "ASCEND_QUANT_STACK=ascend-cann9.1",
        "PYTHON",
        run={"stack": "cpu"},
        devices=Devices(files=NPU_FILES[:2]),
    ),
    case(
        versions.of_stack,
        "warning",
        "/dev/nvidia0",
        "ASCEND_QUANT_STACK=cuda13",
        "PYTHON",
        run={"stack": "cpu"},
        devices=Devices(files=("nvidia0", "nvidia1")),
    ),
    case(devices.present, "error", "/usr/local/dcmi:ro", **no_devices("npu-smi is not on PATH")),
    case(
        devices.present, "error", "device-share", "`devices`", **no_devices("because the device is used. ret is -8020")
    ),
    case(devices.present, "error", "-8005", "docker ps", **no_devices("dcmi module initialize failed. ret is -8005")),
    case(
        devices.present,
        "error",
        "PATH=$PATH:/usr/local/sbin",
        **no_devices(f"/usr/local/sbin/npu-smi {NOT_ON_PATH}"),
    ),
    case(devices.present, "error", "--device /dev/davinci0", **no_devices("dcmi failed", NPU_FILES[2:])),
    case(devices.present, "error", "--device /dev/hisi_hdc", **npus(files=NPU_FILES[:-1])),
    case(devices.present, "error", "2 x 910B3, driver 25.5.1", "8", run={"devices": 8}),
    case(devices.present, "error", "device 3", "0, 1", run={"devices": [0, 3]}),
    case(devices.present, "error", "=1 leaves 1", run={"devices": 2}, **variable(ASCEND_RT_VISIBLE_DEVICES="1")),
    case(devices.present, "error", "--gpus all", devices=Devices("NVML", "not on PATH"), run=CUDA),
    case(devices.free, "error", "device 3: Alarm", **one(3, "Alarm")),
    case(devices.free, "warning", "npu-smi info -t health -i 3", **one(3, "Warning")),
    case(devices.free, "warning", "30000 MiB", "python3 (77)", **npus(holders=(Holder(1, 77, "python3", 30000),))),
    case(devices.free, "warning", "device 3", "30000 MiB", **one(3, "OK", 30000)),
    case(devices.free, "warning", "device 3", **one(3, "OK", None, None)),
    case(devices.free, "error", "64 GiB", "needs 80", run={"device_gib": 80}),
    case(versions.packages, "error", "torch-npu==2.10.0.post4", **with_packages(torch_npu=Package("2.9.0"))),
    case(versions.packages, "error", "verl is not installed", **with_packages(verl=None)),
    case(versions.packages, "error", "pip install -e .", **with_packages(ascend_quant=None)),
    case(versions.packages, "error", "Python 3.11.2", "has 3.12", **software(python="3.11.2")),
    case(versions.packages, "error", "install triton-ascend==3.2.2", **with_packages(triton=Package("3.6.0"))),
    case(versions.driver, "error", "CANN 8.3.RC1", "9.1.0", **software(cann="8.3.RC1")),
    case(versions.driver, "error", "no CANN in /opt/x", **software(cann=None, cann_from="/opt/x")),
    case(versions.driver, "error", "too old for CANN 9.1.0", **npus(driver="25.0.rc1.b010")),
    case(versions.driver, "ok", "27.0.0", "CANN 9.1.0", **npus(driver="27.0.0")),
    case(versions.driver, "warning", "570.1", "580", devices=Devices("NVML", driver="570.1"), run=CUDA),
    case(versions.chip, "error", "A3 (ascend910_9392)", devices=A3),
    case(versions.chip, "error", "ascend310p3", **npus(chip="ascend310p3")),
    case(versions.chip, "warning", "vllm-ascend", **software(chip_of_image=None)),
    case(versions.packages, "error", "/x/usercustomize.py", "cleanup", **software(flashrl="/x/usercustomize.py")),
    case(network.address, "error", "192.0.2.11", **on_network(wire=None, problem="no NIC has address 192.0.2.11")),
    case(network.address, "error", "unset HCCL_IF_IP", run=ALONE, **variable(HCCL_IF_IP="192.0.2.12")),
    case(network.address, "warning", "127.0.0.1", "192.0.2.11", **variable(HCCL_IF_IP="192.0.2.12")),
    case(
        network.address,
        "error",
        "inventory",
        run={"environment": {"HCCL_IF_IP": "a"}},
        **variable(HCCL_IF_IP="a"),
    ),
    case(network.address, "error", "lo", "bond0", run=ALONE, **variable(GLOO_SOCKET_IFNAME="bond")),
    case(network.ports, "error", "port 6766 (ray)", "stop", **on_network(taken=("port 6766 (ray) is in use by x",))),
    case(network.between, "error", "device 1: DOWN", **link(state="DOWN")),
    case(network.between, "warning", "device 1: DOWN", **link(state="DOWN"), devices=A3),
    case(network.between, "warning", "there is no hccn_tool", links=Links(problem="there is no hccn_tool")),
    case(network.between, "error", "no address: device 1", **link(address=None)),
    case(network.between, "error", "/etc/hccn.conf", links=replace(well().links, config=False)),
    case(machine.shm, "error", "64.0 MiB", "--shm-size=64g", **on_machine(shared_memory=(1 << 26, 1 << 26))),
    case(machine.shm, "warning", "2.0 of 64.0 GiB", "ls -lS", **on_machine(shared_memory=(64 * GIB, 2 * GIB))),
    case(machine.tmp, "error", "noexec", "--tmpfs /tmp:exec", **on_machine(unusable="is mounted noexec")),
    case(machine.tmp, "warning", "2 GiB", "5", **on_machine(temporary=(9 * GIB, 2 * GIB))),
    case(machine.tmp, "error", "0 GiB", "5", **on_machine(temporary=(9 * GIB, GIB // 4))),
    case(machine.tmp, "warning", "96.0%", FULLEST, **on_machine(temporary=(1000 * GIB, 40 * GIB))),
    case(
        machine.tmp,
        "ok",
        "40 GiB",
        **on_machine(temporary=(1000 * GIB, 40 * GIB)),
        variables={FULLEST: "0.97"},
    ),
    case(machine.memory, "warning", "900 of 1024 GiB", "needs 1000", run={"host_gib": 1000}),
    case(machine.memory, "error", "needs 2000", run={"host_gib": 2000}),
    case(machine.variables, "warning", "unset ASCEND_LAUNCH_BLOCKING", **variable(ASCEND_LAUNCH_BLOCKING="1")),
    case(
        machine.variables,
        "error",
        "export PYTORCH_NPU_ALLOC_CONF=page_size:1g",
        **variable(PYTORCH_NPU_ALLOC_CONF="page_size:1g,expandable_segments:True"),
    ),
    case(run.imports, "error", "megatron.bridge", "take another recipe", missing=(BRIDGE,)),
    case(run.inputs, "error", "/m is", "copy", run={"model": "/m"}, files=Files(True, (("/m is missing", "copy it"),))),
    case(run.inputs, "warning", "hf download a/m", run={"model": "a/m"}, files=Files(model=False)),
    case(run.inputs, "error", "a/m is", "copy", run={"model": "a/m"}, files=Files(False, (("a/m is", "copy it"),))),
    case(
        run.inputs,
        "error",
        "/d/train.parquet",
        "./run.sh data,",
        files=Files(missing_data=("/d/train.parquet",)),
    ),
    case(run.inputs, "error", "/d/t.parquet has no rows", files=Files(wrong_data=("/d/t.parquet has no rows",))),
    case(run.out, "error", "/o cannot be written", run={"out": "/o"}, files=Files(out=GIB, writable=False)),
    case(run.out, "warning", "20 GiB free for /o", "50", run={"out": "/o"}, files=Files(out=20 * GIB)),
    case(run.out, "error", "0 GiB free for /o", "--out", run={"out": "/o"}, files=Files(out=GIB // 3)),
    case(
        run.out,
        "error",
        "3 checkpoints",
        "keep fewer",
        run={"out": "/o"},
        files=Files(out=60 * GIB, lacking_room=(("/o: 3 checkpoints need 90 GiB", "keep fewer"),)),
    ),
]


@pytest.mark.parametrize("stack", PYTHONS)
def test_nothing_is_wrong_where_all_is_well(stack: str):
    findings = [finding for check in CHECKS for finding in check(well(stack), wanted(stack))]
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert len(findings) > 5


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.check.name)
def test_what_is_wrong_is_found(case: Case):
    found = said(case.check, well(case.run.get("stack", "ascend-cann9.1"), **case.changed), wanted(**case.run))
    assert [line for level, line in found if level == case.level and has_line_naming(line, *case.words)], found
    assert all(line.split(" | ")[1] for level, line in found if level != "ok"), "each has a fix"


def test_where_python_is_unset_that_is_the_first_finding_and_the_only_one():
    """The environment of stack cpu on a host with GPUs: torch, vLLM, NVML and late imports are other ones, or none."""
    unasked = Devices("NVML", "nvidia-ml-py is not installed here")
    facts = well("cuda13", devices=unasked, missing=(BRIDGE,), **ON_CPU)
    found = [one for one in judged(CHECKS, facts, wanted("cuda13", imports=[BRIDGE])) if one.level != "ok"]
    assert [(one.level, one.check) for one in found] == [("error", "versions.python")]
    assert CHECKS[0] is versions.of_stack
    npus = judged(CHECKS, well(devices=no_devices("no npu-smi")["devices"], **ON_CPU), wanted())
    assert [one.check for one in npus if one.level == "error"] == ["versions.python", "devices.present"]  # the driver's
    lost = replace(well("cuda13").software, packages={})
    assert len(judged(CHECKS, well("cuda13", software=lost, devices=unasked), wanted("cuda13"))) > 6, "all is said else"


def test_every_check_has_a_case():
    assert {check.name for check in CHECKS} == {case.check.name for case in CASES}


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
    facts = well(network=Network(NICS, ("eth0", "192.0.2.2")), variables={name: value})
    for environment, level in (({name: value}, "error"), ({}, "warning")):
        found = said(network.address, facts, wanted(environment=environment))[1:]
        assert [one for one, _ in found] == ([] if fits else [level])
        assert all(has_line_naming(line, name, value) for _, line in found)


def test_a_pinned_commit_is_seen_by_installer_or_version():
    stack = "ascend-cann8.5"
    built = Package("0.1.dev1+g0000000", "0000000")
    other = replace(well(stack).software, packages=packages(stack) | {"vllm-ascend": built})
    (level, line), *_ = said(versions.packages, well(stack, software=other), wanted(stack))
    assert level == "error" and has_line_naming(line, "vllm-ascend", "commit 0000000", "7e16b4a7cdb1")
    assert "install vllm-ascend @ git+https://github.com/vllm-project/vllm-ascend@7e16b4a7cdb15723" in line


def test_expandable_segments_are_fine_without_sleep_mode():
    facts = well(variables={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"})
    assert said(machine.variables, facts, wanted(sleeps=False)) == []


def test_a_device_that_the_inventory_leaves_out_may_be_ill():
    facts = well(**one(3, "Alarm"))
    assert [level for level, _ in said(devices.free, facts, wanted(devices=[0, 1]))] == ["ok"]
    assert [level for level, _ in said(devices.free, facts, wanted(devices=[0, 3]))] == ["error"]


def test_a_check_that_fails_itself_is_a_finding():
    (finding,) = machine.memory(replace(well(), machine=None), wanted())
    assert finding.level == "error" and "AttributeError" in finding.what


@pytest.mark.parametrize("name", [field.name for field in fields(Facts)])
def test_checks_of_facts_that_could_not_be_gathered_say_so_and_others_go_on(name: str):
    facts = well(**{name: KeyError("MemTotal")})
    found = [check(facts, wanted(model="a/m", out="/o")) for check in CHECKS]
    failed = [one for findings in found for one in findings if one.level != "ok"]
    assert failed and {(one.level, "KeyError: 'MemTotal'" in one.what) for one in failed} == {("error", True)}
    assert len(failed) < len(CHECKS) / 2
    assert ("Python" in traits_of(facts)) == (name != "software")


@pytest.mark.parametrize(
    ("chip", "name"),
    [("ascend910b4-1", "A2"), ("ascend910_9362", "A3"), ("Ascend910B2C", "A2"), ("A3", "A3"), ("ascend310p1", None)],
)
def test_products_of_chips(chip: str, name: str | None):
    assert product(chip) == name


def test_one_host_alone_needs_no_links_between_hosts():
    down = well(**link(state="DOWN"))
    assert said(network.between, down, wanted(hosts=1)) == []
