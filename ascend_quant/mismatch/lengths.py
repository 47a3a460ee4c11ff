"""What importance weights leave at a recipe's length, from the measured tokens of shorter responses.

Assumed: tokens' log ratios l are independent and alike at all lengths, so that a sequence's sum over T of them is
normal, with mean -T * KL (k3, the estimate of less variance) and variance T * Var(l). A token's weight does not depend
on the length. `spread` tests the first assumption on the sequences at hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ascend_quant.estimators import mismatch
from ascend_quant.importance import ClippedWeights, of_normal


@dataclass(frozen=True)
class AtLength:
    """Weights at a length.

    Attributes:
        length: tokens of a response.
        kl, variance: of a token's log ratio: -mean, in nats, and variance, in nats squared.
        spread: the variance of the sequences' sums, over that of independent tokens; None of fewer than two sequences.
        token: a weight for each token, as measured.
        sequence: a weight for each sequence.
    """

    length: int
    kl: float
    variance: float
    spread: float | None
    token: ClippedWeights
    sequence: ClippedWeights


def at_length(
    length: int, rollout: Sequence[torch.Tensor], train: Sequence[torch.Tensor], threshold: float
) -> AtLength:
    """Extrapolate to `length` tokens.

    Args:
        rollout, train: log-probabilities (tokens,) of each sequence, in nats.
        threshold: where weights are clipped.
    """
    found = mismatch(torch.cat(list(rollout)), torch.cat(list(train)), threshold)
    ratios = [b.double() - a.double() for a, b in zip(rollout, train, strict=True)]
    tokens = torch.cat(ratios)
    mean, variance = tokens.mean(), tokens.var(unbiased=False).item()
    sums = torch.stack([(one - mean).sum() for one in ratios])
    spread = None
    if len(sums) > 1 and variance > 0:
        spread = (sums.square().sum() / (len(sums) - 1) * len(sums) / (len(tokens) * variance)).item()
    return AtLength(
        length,
        found.k3_kl,
        variance,
        spread,
        ClippedWeights(found.weight_mean, found.ess, found.clipped),
        of_normal(-length * found.k3_kl, length * variance, threshold),
    )
