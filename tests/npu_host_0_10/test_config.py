"""Which quantization vLLM 0.10.1 takes for a checkpoint, with vllm-ascend 0.10's own, which claims them all."""

import pytest
import torch
from npu_host import models
from vllm.config import VllmConfig
from vllm.model_executor.layers import quantization
from vllm.platforms import current_platform
from vllm_ascend.quantization.quant_config import AscendQuantConfig

from ascend_quant.integrations import vllm as plugin
from ascend_quant.refit import RefitError
from npu_host_0_10 import engine

OURS = {"quant_method": plugin.NAME, "scheme": "int8", "nz": False}


@pytest.fixture(autouse=True)
def registered():
    for _ in range(2):  # vLLM loads plugins in every one of its processes, and some twice
        plugin.register()


def test_ours_is_asked_first():
    assert quantization.QUANTIZATION_METHODS[0] == plugin.NAME
    assert quantization.QUANTIZATION_METHODS.count(plugin.NAME) == 1
    assert "ascend" in quantization.QUANTIZATION_METHODS
    assert current_platform.supported_quantization.count(plugin.NAME) == 1


@pytest.mark.parametrize("asked", [None, plugin.NAME])
def test_a_checkpoint_with_our_config_is_ours(tmp_path, asked):
    model = models.model_config(
        tmp_path, "Qwen3ForCausalLM", quantization=asked, hf_overrides={"quantization_config": OURS}
    )
    assert model.quantization == plugin.NAME
    config = VllmConfig(model_config=model).quant_config
    assert isinstance(config, AscendQuantConfig) and config.get_name() == plugin.NAME
    assert config.quant_description == {} and config.packed_modules_mapping == {} and not config.options.nz


def test_a_plain_checkpoint_is_ours_when_asked_for(tmp_path):
    assert models.model_config(tmp_path, "Qwen3ForCausalLM", quantization=plugin.NAME).quantization == plugin.NAME
    assert models.model_config(tmp_path, "Qwen3ForCausalLM").quantization is None


def test_another_checkpoint_stays_vllm_ascends(tmp_path):
    overrides = {"quantization_config": {"quant_method": "modelslim"}}
    assert models.model_config(tmp_path, "Qwen3ForCausalLM", hf_overrides=overrides).quantization == "ascend"


def build(tmp_path, architecture: str, **options):
    from vllm.model_executor.model_loader import base_loader

    from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig

    with engine.running(tmp_path, architecture) as config:
        config.quant_config = NpuQuantConfig(**options)
        return base_loader.initialize_model(vllm_config=config, model_config=config.model_config)


def test_layers_to_be_ignored_keep_their_dtype(tmp_path):
    model = build(tmp_path, "Qwen3ForCausalLM", ignore=["re:.*self_attn.*"])  # whose qkv_proj is asked for its scheme
    layer = model.model.layers[0]
    assert layer.self_attn.qkv_proj.weight.dtype == torch.bfloat16
    assert layer.mlp.gate_up_proj.weight.dtype == torch.int8


def test_experts_cannot_be_ignored(tmp_path):
    with pytest.raises(RefitError, match="`ignore`"):
        build(tmp_path, "Qwen3MoeForCausalLM", ignore=["re:.*experts.*"])


def test_a_linear_method_has_what_vllm_ascend_looks_for():
    from vllm_ascend.quantization.quant_config import AscendLinearMethod
    from vllm_ascend.quantization.w8a8_dynamic import AscendW8A8DynamicLinearMethod

    from ascend_quant.integrations.vllm_ascend.linear import Int8NpuLinearMethod

    method = Int8NpuLinearMethod(nz=True)
    assert isinstance(method, AscendLinearMethod) and isinstance(method.quant_method, AscendW8A8DynamicLinearMethod)
