"""Layers that keep their dtype: embeddings, lm_head, routers, ignored layers, everything under scheme `bf16`.

On CPUs, vLLM's own methods pack weights after loading, and discard the original, so a refit would not update the packed
copy. These methods compute from the resident parameter, with vLLM's own product if that does not pack.
"""

from functools import partial

import torch
import torch.nn.functional as F
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from ascend_quant.integrations.vllm.compat import PACKS_PLAIN_WEIGHTS, batch_invariant
from ascend_quant.kernels import kernels_for


class FromResident:
    """Methods that compute from `layer.weight`, and keep nothing derived from it."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        after_loading(layer)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return F.linear(x, layer.weight, bias) if PACKS_PLAIN_WEIGHTS else super().apply(layer, x, bias)


class PlainLinearMethod(FromResident, UnquantizedLinearMethod):
    """Linear method of a layer that is not quantized."""


class RouterMethod(PlainLinearMethod):
    """Linear method of an MoE router: on CUDA, few tokens use our own kernel, not vLLM's product.

    In vLLM's batch-invariant mode our kernel is not used, since larger batches use another one, except with `exact`.
    """

    def __init__(self, exact: bool = False):
        super().__init__()
        # looked up here, since torch.compile cannot trace the lookup
        own = getattr(kernels_for(torch.get_default_device()), "router_product", None)
        self.product = None if own is None or batch_invariant() else partial(own, any_number=exact)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return super().apply(layer, x, bias) if bias is not None or not self.product else self.product(x, layer.weight)


class PlainEmbeddingMethod(FromResident, UnquantizedEmbeddingMethod):
    """Method of an embedding or a language-model head."""


class Float32HeadMethod(PlainEmbeddingMethod):
    """Method of a language-model head with float32 logits; embedding lookup is unchanged if the two are tied."""

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        logits = kernels_for(x.device).float32_product(x, layer.weight)
        return logits if bias is None else logits + bias.float()


def after_loading(layer: torch.nn.Module) -> None:
    """Handle vLLM's post-load hook of a layer: the first call completes the whole model, later ones do nothing."""
    layer.ascend_quant_settle()
