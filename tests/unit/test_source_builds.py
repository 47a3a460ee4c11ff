"""What is built from source finds in its lock what its build asks for, and what it would fetch is pinned."""

from pathlib import Path

import bake_file
import pytest
import yaml
from lock_file import MACHINES, installed, of_stack
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from source_facts import imports, requires
from test_locks import MISSING

from launch.recipes.stacks import all_pins

FACTS = yaml.safe_load((Path(__file__).parent / "data" / "source_builds.yaml").read_text())
SOURCES = [(stack, name) for stack, pins in all_pins().items() for name in pins.sources]


def have(stack: str, architecture: str) -> dict[str, str]:
    """What the stack's locks install, and what of its torch lock is known to be missing."""
    found = {name: version for lock in of_stack(stack) for name, version in installed(lock, architecture).items()}
    gaps = {package for lock, where, package in MISSING if lock == f"{stack}.torch" and where in (architecture, "*")}
    return found | {package: all_pins()[stack].packages[package] for package in gaps}


@pytest.mark.parametrize(("stack", "name"), SOURCES)
def test_the_facts_are_of_the_pinned_commit(stack: str, name: str):
    """Another commit may ask for something else: read it, with source_facts.py, before its pin moves."""
    assert FACTS[stack][name]["commit"] == all_pins()[stack].sources[name].commit


@pytest.mark.parametrize("architecture", MACHINES)
@pytest.mark.parametrize(("stack", "name"), SOURCES)
def test_its_build_finds_what_it_imports_and_requires(stack: str, name: str, architecture: str):
    facts, there = FACTS[stack][name], have(stack, architecture)
    assert {canonicalize_name(module) for module in facts["imports"]} <= there.keys()
    unmet = set()
    for one in map(Requirement, facts["requires"]):
        version = there.get(canonicalize_name(one.name))
        if version is None or not one.specifier.contains(version, prereleases=True):
            unmet.add(one.name)
    assert unmet == facts.get("unmet", {}).keys()


@pytest.mark.parametrize(("stack", "name"), SOURCES)
def test_what_its_build_would_fetch_is_pinned(stack: str, name: str):
    fetched, (target, *_) = FACTS[stack][name].get("fetched", {}), bake_file.of_stack(stack)
    archives = [one.partition("=") for one in bake_file.sources(target) if one.startswith(f"{name}/")]
    files = {place.removeprefix(f"{name}/"): file.partition("#sha256:")[2] for place, _, file in archives}
    assert files.keys() == fetched.keys()
    for place, known in fetched.items():
        assert known in (None, files[place]), place


def test_facts_are_read_from_a_source():
    setup = (
        "import os, torch.utils\nfrom setuptools_scm import get_version\nfrom .ours import x\n"
        "try:\n    import numpy as np\nexcept ImportError:\n    pass\n"
        "def build():\n    import requests\n"
        "subprocess.check_output(['python3', '-m', 'pybind11', '--includes'])\n"
    )
    assert imports(setup) == ["numpy", "pybind11", "setuptools_scm", "torch"]
    project = '[build-system]\nrequires = [\n  "cmake>=3.26", # why\n  \'wheel\',\n]\n[project]\nrequires = ["no"]\n'
    assert requires(project) == ["cmake>=3.26", "wheel"] and requires("[project]\n") == []
