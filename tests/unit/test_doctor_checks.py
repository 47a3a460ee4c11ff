"""Each check on facts made up: silent or content where all is well, and the right word where one thing is not."""

from dataclasses import fields, replace

import pytest
from doctor_cases import CASES, Case
from doctor_facts import PYTHONS, packages, said, wanted, well
from naming import has_line_naming

from launch.doctor.checks import devices, links, system, variables, versions
from launch.doctor.checks.versions import product
from launch.doctor.examination import CHECKS
from launch.doctor.examination import traits as traits_of
from launch.doctor.facts import Device, Devices, Facts, Kernels, Package, Rdma


@pytest.mark.parametrize("stack", PYTHONS)
def test_nothing_is_wrong_where_all_is_well(stack: str):
    facts = (
        well(stack) if stack != "cuda13" else well(stack, devices=gpus(), kernels=Kernels("cuda", {"int8": "cutlass"}))
    )
    findings = [finding for check in CHECKS for finding in check(facts, wanted(stack))]
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert len(findings) > 15


def gpus() -> Devices:
    return Devices("nvidia-smi", driver="570.1", found=(Device(0, "NVIDIA H200", "OK", 5, 143771),))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.check.name)
def test_what_is_wrong_is_found(case: Case):
    found = said(case.check, well(**case.changed), wanted(**case.run))
    assert [line for level, line in found if level == case.level and case.words in line], found
    assert all(line.split(" | ")[1] for level, line in found if level != "ok"), "each has a fix"


def test_every_check_has_a_case():
    assert {check.name for check in CHECKS} == {case.check.name for case in CASES}


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("bond0", True),
        ("bond", True),
        ("=bond0", True),
        ("^lo", True),
        ("^=lo,docker", True),
        ("eth", False),
        ("=lo1,bond", False),
    ],
)
def test_a_nic_pattern_fits_as_hccl_and_nccl_take_it(value: str, fits: int):
    found = said(variables.nic, well(variables={"HCCL_SOCKET_IFNAME": value}))
    assert [level == "ok" for level, _ in found] == [bool(fits)]


def test_a_pinned_commit_is_seen_by_installer_or_version():
    stack = "ascend-cann8.5"
    built = Package("0.1.dev1+g0000000", "0000000")
    other = replace(well(stack).software, packages=packages(stack) | {"vllm-ascend": built})
    (level, line), *_ = said(versions.packages, well(stack, software=other), wanted(stack))
    assert level == "error" and has_line_naming(line, "vllm-ascend", "commit 0000000", "7e16b4a7cdb1")
    assert "install vllm-ascend @ git+https://github.com/vllm-project/vllm-ascend@7e16b4a7cdb15723" in line


def test_expandable_segments_are_fine_without_sleep_mode():
    facts = well(variables={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"})
    assert said(variables.allocator, facts, wanted(sleeps=False))[0][0] == "ok"


def test_a_check_that_fails_itself_is_a_finding():
    broken = replace(well(), system=None)
    (finding,) = system.files(broken, wanted())
    assert finding.level == "error" and "AttributeError" in finding.what


@pytest.mark.parametrize("name", [field.name for field in fields(Facts)])
def test_facts_that_could_not_be_gathered_are_one_finding(name: str):
    facts, run = well(**{name: KeyError("MemTotal")}), wanted()
    found = [finding for check in CHECKS for finding in check(facts, run) if finding.level != "ok"]
    assert [(one.check, one.level, name in one.what and "MemTotal" in one.what) for one in found] == [
        ("facts.gathered", "error", True)
    ]
    assert ("Python" in traits_of(facts)) == (name != "software")


@pytest.mark.parametrize(
    ("chip", "name"),
    [
        ("ascend910b4-1", "A2"),
        ("ascend910_9362", "A3"),
        ("Ascend910B2C", "A2"),
        ("A3", "A3"),
        ("ascend310p1", None),
        ("", None),
    ],
)
def test_products_of_chips(chip: str, name: str | None):
    assert product(chip) == name


def test_the_cpu_stack_is_not_asked_for_devices():
    facts: Facts = well("cpu")
    assert [
        said(check, facts, wanted("cpu")) for check in (devices.present, versions.chip, links.state, versions.driver)
    ] == [[]] * 4


def test_rdma_is_for_hosts_with_gpus_that_meet_others():
    there, mapped = Rdma(("mlx5_0",)), Rdma(("mlx5_0",), ("rdma_cm", "uverbs0"))
    levels = [level for level, _ in said(links.rdma, well(rdma=mapped), wanted("cuda13"))]
    assert levels == ["ok"]
    assert [level for level, _ in said(links.rdma, well(rdma=there), wanted("cuda13"))] == ["warning"]
    for facts, run in ((there, wanted("cuda13", hosts=1)), (there, wanted()), (Rdma(), wanted("cuda13"))):
        assert said(links.rdma, well(rdma=facts), run) == []
