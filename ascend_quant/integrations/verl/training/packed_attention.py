"""Attention for packed sequences without a mask, for verl's trainer, by torch's own kernels.

    actor_rollout_ref.model.external_lib=ascend_quant.integrations.verl.training.packed_attention
    +actor_rollout_ref.model.override_config.attn_implementation=torch_varlen

verl imports `external_lib` in every process that builds a model (actor, reference), which registers the name with
transformers. `torch.nn.attention.varlen` (FlashAttention 2) is part of torch, and its memory is linear in the tokens.
Long sequences use scaled_dot_product_attention one at a time, for which torch has a faster kernel on Hopper; on a CPU
it processes all sequences as one batch.

Shape suffixes: B rows of a batch, S tokens per row, T tokens of all sequences, N sequences, H heads, D head size.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask
from verl.utils import ulysses

from ascend_quant.exact import packing
from ascend_quant.exact.attention import NAME as EXACT
from ascend_quant.exact.attention import by_sequence
from ascend_quant.exact.packing import Sequences
from ascend_quant.integrations.verl.training import hooks
from ascend_quant.integrations.verl.training.attention_settings import PACKED
from ascend_quant.integrations.wrapping import install

# torch 2.13 requires enable_gqa for fewer key than query heads; 2.11 does not have it.
GROUPED = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
EVERYTHING = -1  # no window limit on this side
# Sequence length from which one launch per sequence pays: forward and backward of a 7B layer on an H200 takes 0.98 ms
# instead of 1.80 at 4,096 tokens, 12.5 instead of 21.7 at 16,384 (benchmarks/results/2026-11-23-h200-training.md).
LONG = 4096


def register() -> None:
    """Register the attention with transformers, and exclude its name from the configs that verl saves."""
    AttentionInterface.register(PACKED, packed_attention)
    AttentionMaskInterface.register(PACKED, flash_attention_mask)  # passes a batch's 2-D mask through, or None
    install(hooks.WITH_OUR_ATTENTION)


def register_exact() -> None:
    """Register the exact attention's name for the variant that exchanges heads under Ulysses."""
    AttentionInterface.register(EXACT, partial(packed_attention, compute=exact))


def packed_attention(
    module: torch.nn.Module,
    q_BHSD: torch.Tensor,
    k_BHSD: torch.Tensor,
    v_BHSD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    compute: Callable[..., torch.Tensor] | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention over packed sequences, with transformers' signature; there may be fewer key/value heads (GQA).

    Under Ulysses each rank has S / ranks tokens of every row, and all heads; heads are exchanged for tokens before the
    kernel, and back after it.

    Args:
        attention_mask: (B, S), true tokens nonzero, or None if nothing is padded.
        position_ids: (B, S); without a mask, a sequence begins wherever it is 0.
        compute: attention function to use instead of `varlen`.

    Returns:
        The output (B, S, H, D), and None for the attention weights.

    Raises:
        NotImplementedError: for dropout, softcap, attention sinks, a cache, a device without a kernel (use
            flash_attention_2 on NPUs), padding under Ulysses, or a model that passes no positions to its attention.
    """
    causal = module.is_causal if is_causal is None else is_causal
    exchange = ULYSSES if ulysses.get_ulysses_sequence_parallel_world_size() > 1 and position_ids is not None else None
    is_padded, has_sequences = attention_mask is not None, position_ids is not None or not causal
    tokens = q_BHSD.shape[2], k_BHSD.shape[2]
    asked = {
        "dropout": dropout or None,
        "softcap": softcap,
        "attention sinks: s_aux": None if s_aux is None else tuple(s_aux.shape),
        "cache: tokens of queries and keys": None if tokens == tokens[::-1] else tokens,
        "kernel for device": None if (device := q_BHSD.device.type) in BY_DEVICE else device,
        "padded batches under Ulysses: attention_mask": tuple(attention_mask.shape) if exchange and is_padded else None,
        "sequences without positions: position_ids": None if is_padded or has_sequences else "None",
    }
    packing.refuse(module, PACKED, asked)
    window = sliding_window - 1 if sliding_window else EVERYTHING
    by_kernel = partial(compute or varlen, window=(window, 0 if causal else window), scale=scaling)
    qkv_BHSD = _of_one_dtype(q_BHSD, k_BHSD, v_BHSD)
    return packing.attend(qkv_BHSD, attention_mask, position_ids, by_kernel, exchange), None


def exact(
    q_THD: torch.Tensor,
    k_THD: torch.Tensor,
    v_THD: torch.Tensor,
    sequences: Sequences,
    window: tuple[int, int],
    scale: float | None,
) -> torch.Tensor:
    """Compute causal attention within each sequence, (T, H, D), with an exact engine's kernel.

    Raises:
        NotImplementedError: for a sliding window, or a model that is not causal.
    """
    if window != (EVERYTHING, 0):
        raise NotImplementedError(f"{EXACT} does not support window={window}, only full causal attention")
    return by_sequence(q_THD, k_THD, v_THD, sequences, scale)


def varlen(
    q_THD: torch.Tensor,
    k_THD: torch.Tensor,
    v_THD: torch.Tensor,
    sequences: Sequences,
    window: tuple[int, int],
    scale: float | None,
) -> torch.Tensor:
    """Compute attention within each packed sequence, (T, H, D), with torch's kernel for the device.

    Args:
        window: how many tokens before and after itself a token attends to; -1 means all.

    Raises:
        NotImplementedError: on a GPU, for a dtype without a kernel.
    """
    return BY_DEVICE[q_THD.device.type](q_THD, k_THD, v_THD, sequences, window, scale)


def _flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sequences: Sequences,
    window: tuple[int, int],
    scale: float | None,
) -> torch.Tensor:
    if q.dtype not in (torch.bfloat16, torch.float16):
        raise NotImplementedError(f"{PACKED} has no kernel for {q.dtype}: train in bfloat16 or float16, or with sdpa")
    if window == (EVERYTHING, 0) and len(q) >= LONG * len(sequences.lengths):
        return packing.one_at_a_time(q, k, v, sequences.lengths, scale)
    offsets, longest = sequences.offsets, max(sequences.lengths)
    more = {"scale": scale, "window_size": window, **GROUPED}
    return varlen_attn(q, k, v, offsets, offsets, longest, longest, **more)


def _one_padded_batch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sequences: Sequences,
    window: tuple[int, int],
    scale: float | None,
) -> torch.Tensor:
    """Compute attention of packed sequences in one right-padded batch, with one row per sequence."""
    place = torch.arange(max(sequences.lengths), device=q.device)
    true_NS = place < sequences.offsets.diff().unsqueeze(1)

    def rows(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(*true_NS.shape, *x.shape[1:]).masked_scatter(true_NS[..., None, None], x).transpose(1, 2)

    plain = window == (EVERYTHING, 0)  # causal, so real tokens never attend to the padding after them
    how = {"is_causal": True} if plain else {"attn_mask": _seen(true_NS, window)}
    out = F.scaled_dot_product_attention(rows(q), rows(k), rows(v), scale=scale, enable_gqa=True, **how)
    return out.transpose(1, 2)[true_NS]


def _seen(true_NS: torch.Tensor, window: tuple[int, int]) -> torch.Tensor:
    """Return the attention mask (N, 1, S, S); padding attends to itself, to avoid NaN in softmax."""
    before, after = (true_NS.shape[1] if side == EVERYTHING else side for side in window)
    place = torch.arange(true_NS.shape[1], device=true_NS.device)
    back = place.unsqueeze(1) - place
    return ((back <= before) & (-back <= after) & true_NS[:, None, None, :]) | (back == 0)


BY_DEVICE = {"cuda": _flash_attention, "cpu": _one_padded_batch}


def _positions_of_all_ranks(position_ids: torch.Tensor) -> torch.Tensor:
    position_ids = position_ids.contiguous()
    parts = [torch.empty_like(position_ids) for _ in range(ulysses.get_ulysses_sequence_parallel_world_size())]
    dist.all_gather(parts, position_ids, group=ulysses.get_ulysses_sequence_parallel_group())
    return torch.cat(parts, dim=-1)


def _of_one_dtype(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Cast to autocast's dtype if norms and rotations have left float32; autocast does not cover the kernel."""
    kind = tensors[0].device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return [x.to(dtype or x.dtype) for x in tensors]


def _all_tokens_of_some_heads(*qkv_BSHD: torch.Tensor) -> list[torch.Tensor]:
    """Exchange heads for tokens (Ulysses), by verl's functions: (B, S, H, D) to (B, S * ranks, H / ranks, D).

    If there are fewer key/value heads than ranks, they are repeated first, as in verl.
    """
    ranks = ulysses.get_ulysses_sequence_parallel_world_size()
    whole = [x.repeat_interleave(max(ranks // x.shape[2], 1), dim=2) for x in qkv_BSHD]
    return [ulysses.gather_seq_scatter_heads(x, seq_dim=1, head_dim=2) for x in whole]


ULYSSES = packing.Exchange(
    _all_tokens_of_some_heads,
    _positions_of_all_ranks,
    partial(ulysses.gather_heads_scatter_seq, seq_dim=1, head_dim=2),
)

register()
