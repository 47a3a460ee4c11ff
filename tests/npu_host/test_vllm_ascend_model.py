"""A whole vLLM model, built by vllm-ascend from our config on npu:0: loads are refits, bit by bit the oracle's."""

from collections.abc import Iterator

import pytest
import torch
import torch_npu
from torch import nn

from ascend_quant.integrations import vllm as plugin
from ascend_quant.refit import RefitError
from npu_host import checkpoint, vllm_engine


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Iterator[nn.Module]:
    """Qwen3-MoE of one layer."""
    plugin.register()
    from vllm.model_executor.model_loader import base_loader

    from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig

    with vllm_engine.running(tmp_path_factory.mktemp("engine")) as config:
        config.quant_config = NpuQuantConfig()
        yield base_loader.initialize_model(vllm_config=config, model_config=config.model_config)


def addresses(model: nn.Module) -> dict[str, tuple[int, int]]:
    return {name: (p.data_ptr(), torch_npu.get_npu_format(p.data)) for name, p in model.named_parameters()}


def test_three_refits_are_the_oracles(model):
    refit, before = plugin.refit_of(model), addresses(model)
    for seed in range(3):
        state = checkpoint.state_of(seed)
        pairs = [(name, tensor.npu()) for name, tensor in state.items()]
        with refit.session():  # in buckets, in another order than the model's
            for part in (pairs[10:], pairs[:4], pairs[4:10]):
                model.load_weights(part)
        for module in model.modules():
            if hasattr(getattr(module, "quant_method", None), "process_weights_after_loading"):
                module.quant_method.process_weights_after_loading(module)
        held = checkpoint.held(model)
        for name, pair in checkpoint.expected(state).items():
            assert all(map(torch.equal, held[name], pair)), name
        plain = dict(model.named_parameters())["model.norm.weight"].data.cpu()
        assert torch.equal(plain, state["model.norm.weight"])
        assert addresses(model) == before and refit.last_receipt.digest == refit.digest()
        assert refit.last_receipt.tensors == len(state)


def test_a_bad_tensor_is_named_and_the_next_refit_heals(model):
    refit = plugin.refit_of(model)
    state = checkpoint.state_of(7)
    name = f"{checkpoint.LAYER}.mlp.experts.2.up_proj.weight"
    broken = {**state, name: state[name].clone().fill_(float("nan"))}
    with pytest.raises(RefitError, match=rf"{name}.*NaN"):
        model.load_weights([(key, tensor.npu()) for key, tensor in broken.items()])
    assert refit.why_not_servable()
    model.load_weights([(key, tensor.npu()) for key, tensor in state.items()])
    assert refit.why_not_servable() is None and refit.digest() == refit.last_receipt.digest
