"""What one module of engine tests must not leave to the next, the processor that some ask for, and which are long."""

import sys
from unittest import mock

import pytest
import torch

VLLM = "ascend_quant/integrations/vllm"
LONG = {  # a file, or one test of it: the paths whose change brings it back into a short check
    "test_architectures": (
        "tests/engine/architectures.py",
        *(f"{VLLM}/{file}" for file in ("building.py", "inventory.py", "layers/conv.py")),
    ),
    "test_convert_engine": ("ascend_quant/convert",),
    "test_drafters": (f"{VLLM}/drafters.py",),
    "test_exact_ranks": ("ascend_quant/exact",),
    "test_exact_verl": ("ascend_quant/exact", "ascend_quant/integrations/verl/training/exact/worker.py"),
    "test_flashrl_variables_engine::test_replicas_of_vllms_own_data_parallel_choose_by_their_rank": (
        "ascend_quant/flashrl",
        f"{VLLM}/flashrl.py",
    ),
    "test_flashrl_variables_engine::test_an_unknown_value_ends_the_server_with_the_valid_ones": (
        "ascend_quant/flashrl",
        f"{VLLM}/flashrl.py",
    ),
    "test_flashrl_workflow": ("ascend_quant/flashrl", "ascend_quant/profile"),
    **{
        f"test_forward[{model}]": ("ascend_quant/schemes", "tests/engine/oracle_model.py")
        for model in ("qwen2-tied-int8", "qwen3-int8", "llama-odd-int8", "qwen2-fp8_block", "qwen3-moe-fp8_block")
    },
    "test_key_balance_engine": (f"{VLLM}/kv_cache/key_balance.py", "ascend_quant/kv_cache/smooth_attention.py"),
    "test_kv_cache_engine": (f"{VLLM}/kv_cache/options.py",),
    "test_lora": (f"{VLLM}/layers",),
    "test_mismatch_command": ("ascend_quant/mismatch",),
    "test_parallel": ("ascend_quant/engine", f"{VLLM}/layers"),
    "test_prefix_cache": (f"{VLLM}/worker_refit.py",),
    "test_published": (f"{VLLM}/skipping.py", f"{VLLM}/layers/conv.py"),
    "test_qat_demo": ("ascend_quant/qat", "ascend_quant/demo"),
    "test_routed_experts": (f"{VLLM}/routed_experts.py",),
    "test_routing_replay": (f"{VLLM}/routed_experts.py",),
    "test_sampling": (f"{VLLM}/sampling.py",),
    "test_separate_core": (f"{VLLM}/serving/requests.py", f"{VLLM}/serving/calls.py"),
    "test_smoothing_engine": ("ascend_quant/profile", "ascend_quant/engine/smoothing.py"),
    "test_trainer_workers": (f"{VLLM}/reload.py", "docker/locks/trainers.in"),
    "test_trainers::test_other_ways_of_trl": ("docs/trainers.md", "ascend_quant/flashrl"),
    "test_trainers::test_trl_trains_against_vllm_serve": ("docs/trainers.md", f"{VLLM}/serving/requests.py"),
    "test_verl_apart[int8]": ("ascend_quant/integrations/verl",),
    "test_verl_data_parallel": ("ascend_quant/integrations/verl/metrics/receipts.py",),
    "test_verl_looks": (
        f"{VLLM}/serving/calls.py",
        "ascend_quant/refit/serving_state.py",
        "ascend_quant/integrations/verl/receiving/worker.py",
    ),
    "test_verl_run::test_a_plugin_left_out_is_one_clear_error": ("ascend_quant/integrations/verl",),
    "test_verl_run::test_replicas_of_two_schemes_have_figures_of_their_own": ("ascend_quant/integrations/verl",),
    "test_verl_run::test_verls_own_entry_follows_flashrls_variables": ("ascend_quant/flashrl",),
    "test_weight_updates": (f"{VLLM}/reload.py", f"{VLLM}/serving/requests.py"),
}


@pytest.hookimpl(tryfirst=True)  # before tests/conftest.py leaves out what is long
def pytest_collection_modifyitems(items):
    for item in items:
        file, name = item.path.stem, item.originalname
        for key in (file, f"{file}::{name}", f"{file}[{getattr(item, 'callspec', None) and item.callspec.id}]"):
            if key in LONG:
                item.add_marker(pytest.mark.long(*LONG[key]))


@pytest.fixture(autouse=True, scope="module")
def default_dtype():
    """vLLM leaves a model's dtype as torch's default when it cannot build the model."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def llvmlite_is_not_looked_into(monkeypatch):
    """vLLM 0.31 asks every module's attributes for their `__dict__` when a worker starts on a CPU.

    llvmlite's library answers with a function. numba loads it for n-gram drafters, and the next engine did not start.
    """
    from vllm.triton_utils import dispatcher

    register = dispatcher.register_kernels

    def register_kernels(overrides):
        with mock.patch.dict(sys.modules):
            sys.modules.pop("llvmlite.binding.ffi", None)
            register(overrides)

    monkeypatch.setattr(dispatcher, "register_kernels", register_kernels)


@pytest.fixture
def no_amx(monkeypatch):
    """Engines of this process take a processor without AMX for granted: vLLM asks torch."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
