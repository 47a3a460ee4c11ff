"""Causal attention within each sequence with the engine's kernel, registered with transformers' attention interface.

Sequences are packed by their positions or padded by a mask, as in packing.py. The backward pass is that of torch's
scaled_dot_product_attention at the same queries, keys and values.

Shape suffixes: as in packing.py.
"""

from functools import partial
from typing import Any

import torch

from ascend_quant.exact import packing
from ascend_quant.exact.packing import Sequences
from ascend_quant.exact.straight_through import gradients_of, straight_through
from ascend_quant.kernels.engine_products import engine_product

NAME = "ascend_quant_exact"  # the name in transformers
REFUSED = ("softcap", "s_aux", "sliding_window")  # transformers' arguments that change the result


def register() -> None:
    """Register the name with transformers; idempotent."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, flash_attention_mask)  # passes a batch's 2-D mask through, or None


def attention(
    module: torch.nn.Module,
    q_BHSD: torch.Tensor,
    k_BHSD: torch.Tensor,
    v_BHSD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_ids: torch.Tensor | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention with transformers' signature; see `integrations/verl/training/packed_attention.py`.

    Returns:
        The output (B, S, H, D), and None for the attention weights.

    Raises:
        NotImplementedError: for dropout, a softcap, sinks, a sliding window, a cache, or attention that is not causal.
    """
    is_causal = module.is_causal if more.get("is_causal") is None else more["is_causal"]
    tokens = q_BHSD.shape[2], k_BHSD.shape[2]
    asked = {
        **{name: more.get(name) for name in REFUSED},
        "dropout": dropout or None,
        "cache: tokens of queries and keys": None if tokens == tokens[::-1] else tokens,
        "is_causal": None if is_causal else False,
    }
    packing.refuse(module, NAME, asked)
    compute = partial(by_sequence, scale=scaling)
    return packing.attend((q_BHSD, k_BHSD, v_BHSD), attention_mask, position_ids, compute), None


def by_sequence(
    q_THD: torch.Tensor, k_THD: torch.Tensor, v_THD: torch.Tensor, sequences: Sequences, scale: float | None
) -> torch.Tensor:
    """Compute causal attention within each sequence, (T, H, D)."""
    scale = q_THD.shape[-1] ** -0.5 if scale is None else scale
    engine = partial(engine_product("attention"), sequences=sequences, scale=scale)
    reference = partial(packing.one_at_a_time, lengths=sequences.lengths, scale=scale)
    return straight_through(engine, gradients_of(reference), q_THD, k_THD, v_THD)
