"""Metrics between the policy that sampled and the one that scored: over all tokens and by position, with errors.

A token's position is the number of tokens before it, including the prompt: the length of its context.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from ascend_quant.integrations.verl.metrics.estimators import mismatch, sequence_weights

EDGES = (64, 256, 1024, 4096, 16384)  # upper bounds of position ranges; the last range is open


def figures(sequences: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the `Mismatch` over all tokens, the sequences' `Weights`, standard errors, and the KL by position.

    Args:
        sequences: each with the token ids `prompt` and `response`, and the log-probabilities, in nats, of the
            response's tokens under the policy that sampled them (`rollout`) and the one that scored them (`train`).
    """
    rollout, train = (_vectors(sequences, policy) for policy in ("rollout", "train"))
    differences = [a - b for a, b in zip(rollout, train, strict=True)]
    return {
        "tokens": sum(map(len, rollout)),
        "sequences": len(rollout),
        **asdict(mismatch(torch.cat(rollout), torch.cat(train))),
        "standard_errors": {
            "k1_kl": standard_error(differences),
            "k3_kl": standard_error([_k3(one) for one in differences]),
            "mean_abs": standard_error([one.abs() for one in differences]),
        },
        "sequence_weights": asdict(sequence_weights(rollout, train)),
        "positions": by_position([len(one["prompt"]) for one in sequences], differences),
    }


def by_position(
    prompts: Sequence[int], differences: Sequence[torch.Tensor], edges: Sequence[int] = EDGES
) -> list[dict[str, Any]]:
    """Return the ranges of positions that have tokens: `first`, `end` (exclusive; None if open), and their metrics.

    Args:
        prompts: number of prompt tokens of each sequence.
        differences: logp_rollout - logp_train (tokens,) of each sequence's response.
        edges: ascending upper bounds.
    """
    found = []
    for first, end in zip((0, *edges), (*edges, None), strict=True):
        cuts = [
            one[max(0, first - prompt) : None if end is None else max(0, end - prompt)]
            for prompt, one in zip(prompts, differences, strict=True)
        ]
        cuts = [cut for cut in cuts if len(cut)]
        if cuts:
            tokens, terms = torch.cat(cuts), [_k3(cut) for cut in cuts]
            found.append(
                {
                    "first": first,
                    "end": end,
                    "tokens": len(tokens),
                    "sequences": len(cuts),
                    "k1_kl": tokens.mean().item(),
                    "k3_kl": torch.cat(terms).mean().item(),
                    "standard_error": standard_error(terms),  # of k3_kl
                    "max_abs": tokens.abs().max().item(),
                }
            )
    return found


def standard_error(terms: Sequence[torch.Tensor]) -> float | None:
    """Return the standard error of the mean over all tokens; None for fewer than two sequences.

    Tokens of a sequence are correlated, so sequences are the independent units, and the mean is a ratio of two sums
    over n of them, m = sum(s_i) / sum(t_i): sqrt(n / (n - 1) * sum((s_i - m t_i)^2)) / sum(t_i) (Cochran, "Sampling
    Techniques", 1977, section 2.11).

    Args:
        terms: a vector (t_i,) for each sequence, whose sum is s_i.
    """
    count = len(terms)
    if count < 2:
        return None
    sums, lengths = torch.stack([one.sum() for one in terms]), torch.tensor([len(one) for one in terms])
    beside = sums - sums.sum() / lengths.sum() * lengths
    return ((count / (count - 1) * beside.square().sum()).sqrt() / lengths.sum()).item()


def _vectors(sequences: Sequence[dict[str, Any]], policy: str) -> list[torch.Tensor]:
    return [torch.tensor(one[policy], dtype=torch.float64) for one in sequences]


def _k3(difference: torch.Tensor) -> torch.Tensor:
    """Return each token's term of the k3 estimate (verl/metrics/estimators.py)."""
    return torch.expm1(-difference) + difference
