"""Standard errors of the figures: a bootstrap over sequences.

Tokens of one sequence share its prompt and its course, so sequences are the independent units: whole ones are drawn,
with replacement, and the figures computed anew (Davison and Hinkley, "Bootstrap Methods and their Application", 1997,
section 3.8). The spread of the resampled figures is that of sums over n sequences, not n - 1, and is corrected for it.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
import torch

RESAMPLES = 400
QUANTILES = {"p50_abs": 0.5, "p90_abs": 0.9, "p99_abs": 0.99}
WANTED = 0.1  # relative standard error


def standard_errors(
    rollout: Sequence[torch.Tensor], train: Sequence[torch.Tensor], threshold: float
) -> dict[str, Any] | None:
    """Of each figure of `Mismatch` and, as `sequence_weights`, of `Weights`; of one sequence, None.

    The largest values have none: no resample shows what lies beyond them.

    Args:
        rollout, train: log-probabilities (tokens,) of each sequence, in nats.
        threshold: where importance weights are clipped.
    """
    count = len(rollout)
    if count < 2:
        return None
    differences = [(a.double() - b.double()).cpu().numpy() for a, b in zip(rollout, train, strict=True)]
    drawn_BS = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    resampled = _of_tokens(differences, drawn_BS, threshold)
    log_weights = -np.array([one.sum() for one in differences])
    spread = (count / (count - 1)) ** 0.5
    return {
        **{name: spread * float(values.std()) for name, values in resampled.items()},
        "sequence_weights": {
            name: spread * float(values.std())
            for name, values in _of_weights(np.ones(count), _moments(log_weights, threshold), drawn_BS).items()
        },
    }


def prompts_needed(sequences: int, figure: float, error: float | None) -> int | None:
    """How many more prompts bring a figure to a relative standard error of 10 %; None where that cannot be told.

    Args:
        error: the figure's standard error, which falls with the root of the number of sequences.
    """
    if error is None or figure <= 0:
        return None
    return max(0, ceil(sequences * (error / figure / WANTED) ** 2) - sequences)


def _of_tokens(differences: list[np.ndarray], drawn_BS: np.ndarray, threshold: float) -> dict[str, np.ndarray]:
    d, lengths = np.concatenate(differences), np.array([len(one) for one in differences])
    owner = np.repeat(np.arange(len(lengths)), lengths)

    def mean(values: np.ndarray) -> np.ndarray:
        return drawn_BS @ np.bincount(owner, values, len(lengths)) / (drawn_BS @ lengths)

    moments = [np.bincount(owner, part, len(lengths)) for part in _moments(-d, threshold)]
    found = {"k1_kl": mean(d), "k3_kl": mean(np.expm1(-d) + d), "mean_abs": mean(np.abs(d))}
    weights = _of_weights(lengths, moments, drawn_BS)
    found |= {"weight_mean": weights["mean"], "ess": weights["ess"], "clipped": weights["clipped"]}
    return found | _quantiles(np.abs(d), owner, drawn_BS)


def _moments(log_weight: np.ndarray, threshold: float) -> tuple[np.ndarray, ...]:
    raw = np.exp(log_weight)
    weight = np.minimum(raw, threshold)
    return weight, weight**2, (raw > threshold).astype(float)


def _of_weights(sizes: np.ndarray, moments: Sequence[np.ndarray], drawn_BS: np.ndarray) -> dict[str, np.ndarray]:
    first, second, clipped = (drawn_BS @ part / (drawn_BS @ sizes) for part in moments)
    return {"mean": first, "ess": first**2 / second, "clipped": clipped}


def _quantiles(values: np.ndarray, owner: np.ndarray, drawn_BS: np.ndarray) -> dict[str, np.ndarray]:
    order = np.argsort(values)
    ordered, owner = values[order], owner[order]
    found = {name: np.empty(len(drawn_BS)) for name in QUANTILES}
    for row, drawn_S in enumerate(drawn_BS):
        below = np.cumsum(drawn_S[owner])
        for name, share in QUANTILES.items():
            found[name][row] = ordered[np.searchsorted(below, share * below[-1])]
    return found
