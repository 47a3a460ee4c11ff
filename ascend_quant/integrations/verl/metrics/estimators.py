"""Mismatch of the rollout's log-probabilities with the trainer's: KL estimates (k1, k3) and effective sample size.

With d = logp_rollout - logp_train and the importance weight w = exp(-d), clipped at a threshold (truncated
importance sampling, as verl's `rollout_correction` does):

    k1_kl = mean(d)                        an unbiased estimate of KL(rollout || train)
    k3_kl = mean(exp(-d) - 1 + d)          a nonnegative estimate with less variance
    ess   = mean(w)**2 / mean(w**2)        effective sample size, as a fraction of the samples

k1, k3: Schulman, "Approximating KL Divergence", 2020.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

THRESHOLD = 2.0  # verl's default


@dataclass(frozen=True)
class Weights:
    """Importance weights of tokens or of sequences.

    Attributes:
        mean: mean of the clipped weights.
        largest: maximum before clipping.
        ess: effective sample size of the clipped weights, in (0, 1].
        clipped: fraction of weights above the threshold.
    """

    mean: float
    largest: float
    ess: float
    clipped: float


@dataclass(frozen=True)
class Mismatch:
    """Mismatch statistics over tokens; `mean_abs`, the quantiles and `max_abs` refer to |d|, in nats."""

    mean_abs: float
    p50_abs: float
    p90_abs: float
    p99_abs: float
    max_abs: float
    k1_kl: float
    k3_kl: float
    weight_mean: float
    weight_largest: float
    ess: float
    clipped: float


def mismatch(rollout: torch.Tensor, train: torch.Tensor, threshold: float = THRESHOLD) -> Mismatch:
    """Compare log-probabilities (tokens,) of tokens sampled by the rollout policy.

    Args:
        rollout: log-probabilities from the engine.
        train: log-probabilities from the trainer.
        threshold: threshold at which importance weights are clipped.

    Raises:
        ValueError: there are no tokens, the shapes differ, or a value is not finite.
    """
    difference = _difference(rollout, train)
    absolute = difference.abs()
    p50, p90, p99 = np.quantile(absolute.cpu().numpy(), [0.5, 0.9, 0.99]).tolist()  # torch's takes at most 2**24
    weights = _weights(-difference, threshold)
    return Mismatch(
        mean_abs=absolute.mean().item(),
        p50_abs=p50,
        p90_abs=p90,
        p99_abs=p99,
        max_abs=absolute.max().item(),
        k1_kl=difference.mean().item(),
        k3_kl=(torch.expm1(-difference) + difference).mean().item(),
        weight_mean=weights.mean,
        weight_largest=weights.largest,
        ess=weights.ess,
        clipped=weights.clipped,
    )


def sequence_weights(
    rollout: Sequence[torch.Tensor], train: Sequence[torch.Tensor], threshold: float = THRESHOLD
) -> Weights:
    """Compute one weight per sequence, the product of its tokens' weights, then clipped; all sequences count equally.

    Args:
        rollout, train: log-probabilities (tokens,) of each sequence.
    """
    return _weights(-torch.stack([_difference(*pair).sum() for pair in zip(rollout, train, strict=True)]), threshold)


def _difference(rollout: torch.Tensor, train: torch.Tensor) -> torch.Tensor:
    if rollout.shape != train.shape or rollout.dim() != 1 or not rollout.numel():
        shapes = f"{tuple(rollout.shape)} and {tuple(train.shape)}"
        raise ValueError(
            f"log-probabilities of shapes {shapes}: give two vectors of equal length, with at least one token"
        )
    difference = rollout.detach().cpu().double() - train.detach().cpu().double()
    if bad := int((~difference.isfinite()).sum()):
        raise ValueError(f"{bad} of {difference.numel()} log-probabilities are not finite")
    return difference


def _weights(log_ratio: torch.Tensor, threshold: float) -> Weights:
    if not threshold > 0:
        raise ValueError(f"threshold {threshold}: the clip of importance weights must be a positive number")
    raw = log_ratio.exp()
    weight = raw.clamp(max=threshold)
    return Weights(
        mean=weight.mean().item(),
        largest=raw.max().item(),
        ess=(weight.mean().square() / weight.square().mean()).item(),
        clipped=(raw > threshold).double().mean().item(),
    )
