"""A warning if the effective sample size (ESS) of importance weights is small; verl only logs it.

In bypass mode verl computes the ESS per micro-batch, and logs the mean under the actor's name. With sequence weights, a
micro-batch with a single sequence has an ESS of 1.000, whatever its weight.
"""

import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

LEAST = 0.8  # fraction of a batch that importance weights should leave
EVERY = 50  # steps between two warnings
NAME = "rollout_corr/rollout_is_eff_sample_size"
CUT = "rollout_corr/rollout_is_ratio_fraction_high"
DO = {
    "sequence": (
        "sequence weights leave less of the batch the longer the answers are: set "
        "algorithm.rollout_correction.rollout_is=token"
    ),
    "token": (
        "the two policies are far apart: `ascend-quant mismatch` names the layers to ignore; or generate with a more "
        "precise scheme, or train for the rollout's (QAT for int4, exact training for int8)"
    ),
}


def metric(name: str, bypass: bool) -> str:
    """Return the name of an importance weight metric in verl's log."""
    return f"actor/{name}" if bypass else name


class EffectiveSample:
    """Warns if a step's metrics have a low effective sample size of the importance weights, or none.

    Args:
        correction: verl's `algorithm.rollout_correction`, or None.
    """

    def __init__(self, correction: Mapping[str, Any] | None):
        asked = correction or {}
        self.level: str | None = asked.get("rollout_is")
        self.bypass = bool(asked.get("bypass_mode"))
        self.silent_until = 0
        if self.level == "sequence" and self.bypass:
            logger.warning(
                "%s is computed per micro-batch, and is 1 for a micro-batch of one sequence: trust low "
                "values, not high ones. Set rollout_correction.bypass_mode=false to compute it over the batch",
                metric(NAME, True),
            )

    def look(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Warn if the ESS is below LEAST, or missing although weights are requested; at most once in EVERY steps."""
        if self.level is None or step < self.silent_until or (said := self._problem(metrics)) is None:
            return
        self.silent_until = step + EVERY
        logger.warning(
            "step %d: %s. See docs/mismatch.md; this warning is not repeated before step %d", step, said, step + EVERY
        )

    def _problem(self, metrics: Mapping[str, Any]) -> str | None:
        name, cut = metric(NAME, self.bypass), metric(CUT, self.bypass)
        if name not in metrics:
            return (
                f"rollout_is={self.level} selects importance weights, but verl has not logged {name}, so it trains "
                "without them. Set rollout.calculate_log_probs=True; bypass mode also needs "
                "actor.policy_loss.loss_mode=bypass_mode"
            )
        if (share := float(metrics[name])) >= LEAST:
            return None
        return (
            f"importance weights leave {share:.2f} of the batch ({name}; it should be at least {LEAST}), "
            f"{100 * float(metrics[cut]):.1f} % of them are clipped: {DO[self.level]}"
        )
