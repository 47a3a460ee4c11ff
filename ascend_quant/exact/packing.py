"""Sequence boundaries of a packed or padded micro-batch, for attention within each sequence.

Shape suffixes: B rows of a batch, S tokens per row, T tokens of all sequences, N sequences, H heads, D head size.
"""

from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F


class Sequences(NamedTuple):
    """The offsets of the sequences of a packed or padded micro-batch.

    Attributes:
        offsets: int32 (N + 1,), the start of each sequence among all tokens, and the end of the last (cu_seqlens).
        lengths: number of tokens of each sequence.
        kept: int64 (T,), indexes of a padded batch's real tokens among B * S; None without padding.
    """

    offsets: torch.Tensor
    lengths: tuple[int, ...]
    kept: torch.Tensor | None = None


class Exchange(NamedTuple):
    """The exchange of heads for tokens among ranks that each have a part of every row (Ulysses).

    Attributes:
        to_tokens: maps this rank's tokens of q, k and v (B, S, H, D) to all tokens of some heads.
        positions: maps this rank's position ids to those of all ranks.
        to_heads: maps attention of all tokens and some heads to that of this rank's tokens and all heads.
    """

    to_tokens: Callable[..., Many[torch.Tensor]]
    positions: Callable[[torch.Tensor], torch.Tensor]
    to_heads: Callable[[torch.Tensor], torch.Tensor]


def attend(
    qkv_BHSD: Many[torch.Tensor],
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    compute: Callable[..., torch.Tensor],
    exchange: Exchange | None = None,
) -> torch.Tensor:
    """Compute attention within each sequence, (B, S, H, D).

    Args:
        attention_mask: (B, S), nonzero for real tokens, or None without padding.
        position_ids: (B, S); without a mask, a sequence begins at each 0. Without either, each row is one sequence.
        compute: maps q, k, v (T, H, D) and their `Sequences` to attention (T, H, D).
        exchange: exchange of heads for tokens, before and after the attention.
    """
    q, k, v = (x.transpose(1, 2) for x in qkv_BHSD)
    if exchange is not None:
        q, k, v = exchange.to_tokens(q, k, v)
    batch = q.shape[:2]
    if attention_mask is not None:
        sequences = once(attention_mask, from_mask)
    elif position_ids is not None:
        sequences = once(position_ids, from_positions, batch, exchange and exchange.positions)
    else:
        sequences = whole_rows(*batch, q.device)
    out = compute(*(true_tokens(x, sequences.kept) for x in (q, k, v)), sequences)
    out = padded_again(out, sequences.kept, batch)
    return out if exchange is None else exchange.to_heads(out)


def refuse(module: torch.nn.Module, attention: str, asked: dict[str, Any]) -> None:
    """Raise NotImplementedError for unsupported arguments of transformers' attention, unless they are None."""
    if found := [f"{what}={value}" for what, value in asked.items() if value is not None]:
        raise NotImplementedError(
            f"{type(module).__name__}: {attention} has no {', '.join(found)}; use another attention implementation"
        )


def once(tensor: torch.Tensor, read: Callable[..., Sequences], *more: Any) -> Sequences:
    """Return `read(tensor, *more)`, cached on the tensor for all layers and checkpointing's second forward.

    Reading waits for the device, which would be idle if every layer did so.
    """
    version = None if tensor.is_inference() else tensor._version
    found = getattr(tensor, "_packed_sequences", None)
    if found is None or found[0] != (version, more):
        found = (version, more), read(tensor, *more)
        tensor._packed_sequences = found
    return found[1]


def from_positions(
    position_ids: torch.Tensor,
    batch: tuple[int, int],
    of_all_ranks: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Sequences:
    """Return sequences that begin at each position 0, and with every row."""
    if of_all_ranks is not None:
        position_ids = of_all_ranks(position_ids)
    begins = position_ids.expand(batch) == 0  # a model without padding may give one row of positions for all rows
    begins[:, 0] = True
    return _sequences(begins.flatten().nonzero().flatten(), begins.numel())


def from_mask(mask: torch.Tensor) -> Sequences:
    """Return one sequence for each row of a padded batch."""
    kept = mask.flatten().nonzero().flatten()
    lengths = mask.bool().sum(dim=-1)
    lengths = lengths[lengths > 0]
    return _sequences(lengths.cumsum(0) - lengths, len(kept))._replace(kept=kept)


def whole_rows(rows: int, tokens: int, device: torch.device) -> Sequences:
    """Return one sequence for each row of a batch without padding."""
    return Sequences(torch.arange(0, (rows + 1) * tokens, tokens, dtype=torch.int32, device=device), (tokens,) * rows)


def _sequences(begins: torch.Tensor, tokens: int) -> Sequences:
    offsets = F.pad(begins, (0, 1), value=tokens).to(torch.int32)
    return Sequences(offsets, tuple(offsets.diff().tolist()))


def true_tokens(x_BSHD: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """Unpad: return the real tokens (T, H, D), without padding."""
    x_THD = x_BSHD.reshape(-1, *x_BSHD.shape[2:])
    return x_THD if kept is None else x_THD[kept]


def padded_again(x_THD: torch.Tensor, kept: torch.Tensor | None, batch: tuple[int, int]) -> torch.Tensor:
    """Pad again: return (B, S, H, D), with zeros for padding."""
    if kept is not None:
        x_THD = x_THD.new_zeros(batch[0] * batch[1], *x_THD.shape[1:]).index_copy(0, kept, x_THD)
    return x_THD.view(*batch, *x_THD.shape[1:])


def one_at_a_time(
    q_THD: torch.Tensor, k_THD: torch.Tensor, v_THD: torch.Tensor, lengths: Many[int], scale: float | None
) -> torch.Tensor:
    """Compute causal attention (T, H, D) with torch's scaled_dot_product_attention, one launch per sequence."""
    rows = zip(
        *(x_THD.transpose(0, 1).unsqueeze(0).split(lengths, dim=2) for x_THD in (q_THD, k_THD, v_THD)), strict=True
    )
    outs = [F.scaled_dot_product_attention(*qkv, is_causal=True, scale=scale, enable_gqa=True) for qkv in rows]
    return torch.cat(outs, dim=2)[0].transpose(0, 1)
