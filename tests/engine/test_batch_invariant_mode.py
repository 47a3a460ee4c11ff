"""vLLM's batch-invariant mode and what of ours would not keep it. The int8 kernels: unit/test_batch_invariance.py."""

from types import SimpleNamespace

import pytest
import torch

from ascend_quant.integrations.vllm.layers import plain


@pytest.mark.parametrize("asked", [False, True])
def test_a_router_then_has_one_kernel_for_all_numbers_of_tokens(asked, monkeypatch):
    monkeypatch.setattr("vllm.envs.VLLM_BATCH_INVARIANT", asked, raising=False)
    own = SimpleNamespace(router_product=lambda x, weight, any_number: None)
    monkeypatch.setattr(plain, "kernels_for", lambda device: own)
    method, layer, x = plain.RouterMethod(), torch.nn.Linear(16, 4, bias=False), torch.randn(3, 16)
    assert (method.apply(layer, x) is None) is not asked
    if asked:
        assert torch.equal(method.apply(layer, x), layer(x))
