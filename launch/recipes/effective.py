"""Effective sample size of importance weights, and corrections that verl 0.9.1 computes differently from their names.

The weight of a sequence is the product of its tokens' ratios, so its variance grows with the length: at a KL divergence
of 1e-4 per token, which is typical of INT8 rollouts, half of the batch is lost at 10,000 tokens. The weights of single
tokens do not depend on the length.
"""

from collections.abc import Iterator
from math import erfc, exp, log, log1p, pi, sqrt

from ascend_quant.integrations.verl.training.effective_sample import LEAST, NAME, metric
from ascend_quant.recipes.keys import CORRECTION
from launch.recipes.fields import Recipe

FAR = -30.0  # standard deviations; erfc underflows in float64 not far below this
KL = 1e-4  # nats per token, between the policies of an INT8 rollout and its trainer


def effective_share(tokens: int, kl: float, threshold: float) -> float:
    """Return the effective sample size of sequences' weights as a share of the sequences: E[w]^2 / E[w^2] (Kong 1992).

    The logarithm l of a weight is a sum over many tokens, and is assumed to be normal, with mean m = -tokens * kl and
    variance s^2 = -2 m, so that the mean of the weights is 1. With w = min(exp(l), c), where c is the threshold,
    E[w^j] = exp(j m + j^2 s^2 / 2) Phi((log c - m) / s - j s) + c^j Phi(-(log c - m) / s). The first term is the moment
    of a log-normal variable up to c (Johnson, Kotz and Balakrishnan, "Continuous Univariate Distributions" 1, chapter
    14), the second that of the clipped weights. The moments are computed as logarithms, since in float64 one factor
    overflows while the other underflows.

    Args:
        tokens: number of tokens of a sequence.
        kl: KL divergence from the rollout's policy to the trainer's, in nats per token.
        threshold: value to which larger weights are clipped.
    """
    if (spread := sqrt(2 * tokens * kl)) == 0:
        return 1.0
    mean = -tokens * kl
    at = (log(threshold) - mean) / spread

    def log_moment(power: int) -> float:
        below = power * mean + (power * spread) ** 2 / 2 + _log_phi(at - power * spread)
        above = power * log(threshold) + _log_phi(-at)
        return max(below, above) + log1p(exp(-abs(below - above)))

    return exp(2 * log_moment(1) - log_moment(2))


def _log_phi(z: float) -> float:
    """Return the log of the standard normal CDF; below FAR, by the first terms of its asymptotic expansion."""
    return log(erfc(-z / sqrt(2)) / 2) if z > FAR else -z * z / 2 - log(-z * sqrt(2 * pi)) + log1p(-1 / (z * z))


def correction_problems(recipe: Recipe) -> Iterator[str]:
    """Yield corrections that would have no effect, hang, or lose most of the batch."""
    correction = recipe.correction
    if correction is None:
        return
    if correction.bypass and correction.batch_normalize:
        yield (
            f"{CORRECTION}.rollout_is_batch_normalize: true with bypass: verl averages the weights over each "
            "micro-batch, so a sequence that is alone in one gets the weight 1, and over all ranks, of which those of "
            "other pipeline stages never answer. Set one of the two to false"
        )
    tokens = recipe.rollout.max_response_length
    if correction.level == "sequence" and (share := effective_share(tokens, KL, correction.threshold)) < LEAST:
        yield (
            f"{CORRECTION}.rollout_is: sequence with responses of {tokens} tokens: at a KL of {KL:.3g} per token the "
            f"weights leave {share:.2f} of the batch; it should be at least {LEAST}. Use token"
        )


def told(recipe: Recipe) -> str:
    """Describe the importance weights in words."""
    correction = recipe.correction
    if recipe.is_exact:
        return (
            f"none, since with qat {recipe.qat} both policies are one; the rollout's log-probabilities are the old "
            "ones (bypass); PPO's clipped loss; exact/unequal, which must be 0"
        )
    if correction is None:
        return "none"
    normalized = "divided by their mean over the whole batch" if correction.batch_normalize else "not normalized"
    loss = "plain policy gradient (bypass)" if correction.bypass else "PPO's clipped loss"
    name = metric(NAME, correction.bypass)
    of = "mean of micro-batches" if correction.bypass else "of the batch"
    if correction.bypass and correction.level == "sequence":
        of += ", 1 for a sequence alone in one, whatever its weight"
    return (
        f"one weight per {correction.level}, clipped at {correction.threshold:g}, {normalized}; {loss}; {name} ({of})"
    )
