"""How far the quantized policy is from the trained one, from the log-probabilities of the same tokens.

With d = logp_rollout - logp_train and the importance weight w = exp(-d), clipped at a threshold (truncated
importance sampling, as verl's `rollout_correction` does):

    k3_kl = mean(exp(-d) - 1 + d)          an estimate of KL(rollout || train) that is never negative
    ess   = mean(w)**2 / mean(w**2)        effective sample size, as a fraction of the samples

k3: Schulman, "Approximating KL Divergence", 2020.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Mismatch:
    """Means are over tokens; `mean_abs` and `max_abs` are of |d|, in nats."""

    mean_abs: float
    max_abs: float
    k3_kl: float
    ess: float


def mismatch(rollout: torch.Tensor, train: torch.Tensor, threshold: float = 2.0) -> Mismatch:
    """Compare log-probabilities (tokens,) of tokens that the rollout policy sampled.

    Args:
        rollout: from the engine.
        train: from the trainer.
        threshold: where importance weights are clipped.
    """
    difference = rollout.double() - train.double()
    weight = torch.exp(-difference).clamp(max=threshold)
    return Mismatch(
        mean_abs=difference.abs().mean().item(),
        max_abs=difference.abs().max().item(),
        k3_kl=(torch.exp(-difference) - 1 + difference).mean().item(),
        ess=(weight.mean().square() / weight.square().mean()).item(),
    )
