"""The bounds of the extras hold what was tried: every stack and every lock; the docs name them."""

import re
from functools import cache

import pytest
import tomllib
from lock_file import entries, has
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from launch import ROOT
from launch.recipes.stacks import all_pins

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
BASE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
# Of each stack and lock: what a user of it installs.
OF = {
    "cpu": "cpu",
    "cpu-vllm0.32": "cpu",
    "cuda13": "cuda",
    "ascend-cann8.5": "npu",
    "ascend-cann9.1": "npu",
    "npu-2.7": "npu",
    "npu-host": "npu",
    "npu-0.30": "npu",
}
# Not in the lock, and why.
ABSENT = {("npu-2.7", name): "the operators' tests need no commands" for name in ("typer", "rich")}
ABSENT |= {(lock, "hydra-core"): "the tests on hosts compose no recipe" for lock in ("npu-2.7", "npu-host", "npu-0.30")}


def wanted(extra: str) -> list[Requirement]:
    """What it asks for, with what it takes over from other extras, and what the package asks for."""
    found = [Requirement(text) for text in (*BASE, *EXTRAS[extra])]
    taken = [name for one in found if one.name == "ascend-quant" for name in one.extras]
    return [one for one in found if one.name != "ascend-quant"] + [one for name in taken for one in wanted(name)]


@cache
def versions(name: str) -> dict[str, set[str]]:
    """By package, those of a lock and of the locks that are installed with it."""
    found: dict[str, set[str]] = {}
    for lock in filter(has, (f"{name}{part}" for part in ("", "-image", ".torch"))):
        for entry in entries(lock):
            found.setdefault(entry.name, set()).add(entry.version)
    return found


@pytest.mark.parametrize("name", OF)
def test_a_lock_is_within_the_bounds_of_its_extra(name: str):
    python = re.search(r"^# python: (.*)$", (ROOT / f"docker/locks/{name}.in").read_text(), re.M)[1]
    for one in wanted(OF[name]):
        if one.marker is not None and not one.marker.evaluate({"python_version": python}):
            continue
        there = versions(name).get(canonicalize_name(one.name), set())
        if one.name == "torch" and not there:
            continue  # cpu-vllm0.32 and the NPU tests' locks: install.sh has it from the line `# torch:`
        assert bool(there) != ((name, one.name) in ABSENT), f"{name}: {one}"
        outside = {version for version in there if not one.specifier.contains(version, prereleases=True)}
        assert not outside, f"{name}: {one}"


@pytest.mark.parametrize("stack", all_pins())
def test_a_stack_is_within_the_bounds_of_its_extra(stack: str):
    pinned = {canonicalize_name(name): version for name, version in all_pins()[stack].packages.items()}
    common = [one for one in wanted(OF[stack]) if canonicalize_name(one.name) in pinned]
    assert len(common) >= 2, f"{stack} and {OF[stack]} have next to nothing in common"
    for one in common:
        assert one.specifier.contains(pinned[canonicalize_name(one.name)], prereleases=True), f"{stack}: {one}"


@pytest.mark.parametrize("page", ["docs/install.md", "docs/install.zh.md"])
def test_the_page_says_what_each_extra_asks_for(page: str):
    rows = re.findall(r"^\| `([\w-]+)` \| [^|]* \| ([^|]*) \|$", (ROOT / page).read_text(), re.M)
    said = {name: re.findall("`([^`]+)`", cell) for name, cell in rows}
    assert said == {name: [] if name == "dev" else wanted for name, wanted in EXTRAS.items()}


@pytest.mark.parametrize(
    "page",
    ["README.md", "README.zh.md", "docs/install.md", "docs/install.zh.md", "docs/trainers.md", "docs/trainers.zh.md"],
)
def test_the_install_lines_name_extras_that_exist(page: str):
    lines = re.findall(r"^pip install .*$", (ROOT / page).read_text(), re.M)
    named = {name for line in lines for name in re.findall(r"\[([\w-]+)\]", line)}
    assert lines and named and named <= set(EXTRAS)
