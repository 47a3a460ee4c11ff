"""The difference of two policies by a token's position: how much context its attention read.

A token's position counts the tokens before it, the prompt's too. Bucket i holds positions from edge i-1 (0 for the
first) to below edge i; the last one is open. A figure's standard error is over sequences (uncertainty.py), of which
each brings to a bucket the tokens that it has there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ascend_quant.estimators import mismatch
from ascend_quant.mismatch.uncertainty import standard_errors

EDGES = (1024, 8192, 30720)


@dataclass(frozen=True)
class Bucket:
    """One range of positions.

    Attributes:
        first, end: positions, `end` not among them; None for no end.
        k3_kl, standard_error: a token, in nats; no error where there are fewer than two sequences.
        mean_abs, max_abs: of |delta logprob|.
    """

    first: int
    end: int | None
    tokens: int
    sequences: int
    k3_kl: float
    standard_error: float | None
    mean_abs: float
    max_abs: float


def by_position(
    prompts: Sequence[int],
    reference: Sequence[torch.Tensor],
    other: Sequence[torch.Tensor],
    edges: Sequence[int] = EDGES,
    threshold: float = 2.0,
) -> list[Bucket]:
    """The buckets that have tokens, after one of all positions.

    Args:
        prompts: tokens of each sequence's prompt.
        reference, other: log-probabilities (tokens,) of each sequence's response, which the first policy sampled.
        edges: ascending.
    """
    ranges: list[tuple[int, int | None]] = [(0, None)]
    ranges += zip((0, *edges), (*edges, None), strict=True)
    found = []
    for first, end in ranges:
        pairs = []
        for prompt, one, two in zip(prompts, reference, other, strict=True):
            cut = slice(max(0, first - prompt), None if end is None else max(0, end - prompt))
            if len(one[cut]):
                pairs.append((one[cut], two[cut]))
        if pairs:
            found.append(_bucket(first, end, pairs, threshold))
    return found


def _bucket(first: int, end: int | None, pairs: list[tuple[torch.Tensor, torch.Tensor]], threshold: float) -> Bucket:
    reference, other = ([pair[i] for pair in pairs] for i in (0, 1))
    figures = mismatch(torch.cat(reference), torch.cat(other), threshold)
    errors = standard_errors(reference, other, threshold)
    return Bucket(
        first,
        end,
        tokens=sum(map(len, reference)),
        sequences=len(pairs),
        k3_kl=figures.k3_kl,
        standard_error=errors and errors["k3_kl"],
        mean_abs=figures.mean_abs,
        max_abs=figures.max_abs,
    )
