"""Clipped importance weights whose logarithm is normal: how much of a batch they leave, in closed form.

A sequence's log weight is a sum over many tokens, so it is close to normal; its spread grows with the length.
"""

from dataclasses import dataclass
from math import erfc, exp, log, log1p, pi, sqrt

FAR = -30.0  # standard deviations, below which erfc is near the end of float64


@dataclass(frozen=True)
class ClippedWeights:
    """Of min(w, threshold).

    Attributes:
        mean: E[w], the factor that clipping leaves of the step where every weight should be 1 on average.
        ess: E[w]^2 / E[w^2] (Kong 1992), in (0, 1].
        clipped: which share lies above the threshold.
    """

    mean: float
    ess: float
    clipped: float


def of_normal(mean: float, variance: float, threshold: float) -> ClippedWeights:
    """The weights exp(l) of l ~ N(mean, variance), in nats, clipped at `threshold`.

    E[min(w, c)^j] = exp(j m + j^2 s^2 / 2) Phi((log c - m) / s - j s) + c^j Phi(-(log c - m) / s): the moments of a
    log-normal up to c (Johnson, Kotz and Balakrishnan, "Continuous Univariate Distributions" 1, chapter 14), and
    those that are cut to it. In logarithms, since the two factors leave float64 in opposite directions.
    """
    if variance == 0:
        return ClippedWeights(min(exp(mean), threshold), 1.0, float(exp(mean) > threshold))
    spread = sqrt(variance)
    at = (log(threshold) - mean) / spread

    def log_moment(power: int) -> float:
        below = power * mean + (power * spread) ** 2 / 2 + _log_phi(at - power * spread)
        above = power * log(threshold) + _log_phi(-at)
        return max(below, above) + log1p(exp(-abs(below - above)))

    first, second = log_moment(1), log_moment(2)
    return ClippedWeights(exp(first), exp(2 * first - second), exp(_log_phi(-at)))


def _log_phi(z: float) -> float:
    """The logarithm of the standard normal distribution function; far out, the first terms of its expansion."""
    return log(erfc(-z / sqrt(2)) / 2) if z > FAR else -z * z / 2 - log(-z * sqrt(2 * pi)) + log1p(-1 / (z * z))
