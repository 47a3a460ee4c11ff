"""Routers and experts of MoE models: the engine's routing and products forward, transformers' own backward.

Shape suffixes: M tokens, T experts per token, E experts, N and K as in linear.py.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from ascend_quant.exact.linear import INT8
from ascend_quant.exact.modules import own_forward, reading
from ascend_quant.exact.straight_through import gradients_of, straight_through
from ascend_quant.kernels import kernels_for, serving_of
from ascend_quant.kernels.engine_products import engine_product


class ExactRouter:
    """Mixin before a router's class: softmax over all experts, then the `top_k` largest, renormalized if configured."""

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits (M, E), the engine's routing weights (M, T), not rounded to BF16, and experts (M, T)."""
        x_MK = hidden.reshape(-1, hidden.shape[-1])
        logits_ME = straight_through(router_product, gradients_of(F.linear), x_MK, self.weight)
        with torch.no_grad():
            weight_MT, expert_MT = engine_product("route")(logits_ME, self.top_k, self.norm_topk_prob)
        expert_MT = expert_MT.long()
        reference = partial(_weights, expert_MT=expert_MT, renormalized=self.norm_topk_prob)
        return logits_ME, straight_through(lambda _: weight_MT, gradients_of(reference), logits_ME), expert_MT


def router_product(x_MK: torch.Tensor, weight_EK: torch.Tensor) -> torch.Tensor:
    """Return the logits (M, E) in the dtype of x, with the engine's kernel for any number of tokens."""
    own = getattr(kernels_for(x_MK.device), "router_product", None)
    return F.linear(x_MK, weight_EK) if own is None else own(x_MK.contiguous(), weight_EK, any_number=True)


def is_known_router(module: nn.Module) -> bool:
    """Return whether a module computes weights and experts as `ExactRouter` does, except for the last rounding."""
    if not all(hasattr(module, name) for name in ("weight", "top_k", "norm_topk_prob")):
        return False
    generator, (experts, hidden) = torch.Generator().manual_seed(0), module.weight.shape
    x, weight = (torch.randn(rows, hidden, generator=generator).bfloat16() for rows in (7, experts))
    with torch.no_grad(), reading(module, weight=weight):
        logits_ME, weight_MT, expert_MT = type(module).forward(module, x)
    highest_MT = logits_ME.softmax(-1, dtype=torch.float32).topk(module.top_k).indices
    expected_MT = _weights(logits_ME, expert_MT, module.norm_topk_prob).to(weight_MT.dtype)
    return torch.equal(expert_MT, highest_MT) and torch.equal(weight_MT, expected_MT)


def _weights(logits_ME: torch.Tensor, expert_MT: torch.Tensor, renormalized: bool) -> torch.Tensor:
    chosen_MT = logits_ME.softmax(-1, dtype=torch.float32).gather(-1, expert_MT)
    return chosen_MT / chosen_MT.sum(-1, keepdim=True) if renormalized else chosen_MT


class ExactExperts:
    """Mixin before the class of experts in tensors (E, N, K).

    Attributes:
        ranks: number of ranks over which the engine splits the experts' intermediate size.
    """

    ranks: int

    def forward(self, hidden: torch.Tensor, expert_MT: torch.Tensor, weight_MT: torch.Tensor) -> torch.Tensor:
        def engine(x_MK, weight_MT, w13_ENK, w2_EKN):
            return product(x_MK, weight_MT, expert_MT, w13_ENK, w2_EKN, self.ranks)

        def reference(x_MK, weight_MT, w13_ENK, w2_EKN):
            compute = own_forward(ExactExperts, self, gate_up_proj=w13_ENK, down_proj=w2_EKN)
            return compute(x_MK, expert_MT, weight_MT)

        tensors = hidden, weight_MT, self.gate_up_proj, self.down_proj
        return straight_through(engine, gradients_of(reference), *tensors)


def product(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_ENK: torch.Tensor,
    w2_EKN: torch.Tensor,
    ranks: int = 1,
) -> torch.Tensor:
    """Compute the W8A8 mixture (M, K) of SwiGLU experts, as an engine with this many ranks does."""
    (w13_codes, w13_scale), (w2_codes, w2_scale) = (_codes(w) for w in (w13_ENK, w2_EKN))
    experts = partial(serving_of(INT8, x_MK.device).experts, x_MK, weight_MT, expert_MT.int())
    if ranks == 1:
        return experts(w13_codes, w13_scale, w2_codes, w2_scale)
    gate_up = w13_codes.chunk(2, 1), w13_scale.chunk(2, 1)
    parts = []
    for rank in range(ranks):
        own = [torch.cat([half.chunk(ranks, 1)[rank] for half in halves], 1) for halves in gate_up]
        parts.append(experts(*own, w2_codes.chunk(ranks, 2)[rank].contiguous(), w2_scale))
    return sum(parts[1:], start=parts[0])


def _codes(w_ENK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scale = kernels_for(w_ENK.device).quantize_rows(w_ENK.reshape(-1, w_ENK.shape[-1]))
    return codes.view(w_ENK.shape), scale.view(w_ENK.shape[:2])


def holds_experts(module: nn.Module) -> bool:
    """Return whether these are SwiGLU experts in tensors (E, 2 * intermediate, hidden) and (E, hidden, ..)."""
    gate_up, down = (getattr(module, name, None) for name in ("gate_up_proj", "down_proj"))
    return gate_up is not None and down is not None and not getattr(module, "is_transposed", False)
