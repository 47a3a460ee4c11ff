"""The mismatch of each replica, where there are several: verl's own figures are of all samples together.

A sample's `extra_fields` travel with it from the engine's server to the trainer; ours puts the replica's rank there.
"""

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ascend_quant.estimators import THRESHOLD, mismatch

logger = logging.getLogger(__name__)

REPLICA = "ascend_quant_replica"  # the key in extra_fields
FIGURES = ("k1_kl", "k3_kl", "mean_abs", "ess")


def ranks_of(extra_fields: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """Return the rank of the replica that generated each sample; None, which is logged once, if some do not tell."""
    ranks = [extra.get(REPLICA) for extra in extra_fields]
    if None in ranks:
        _log_unattributed()
        return None
    return ranks


@functools.cache
def _log_unattributed() -> None:
    logger.warning(
        "no mismatch by replica: samples do not tell which one generated them. verl's asynchronous modes, which may "
        "resume a sample on another replica, drop it from extra_fields, and so do agent loops that make their own"
    )


def replica_mismatch(
    ranks: Sequence[int],
    rollout: Sequence[torch.Tensor],
    train: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor],
    threshold: float,
) -> dict[str, float]:
    """Compute each replica's mismatch, such as rollout_corr/replica0/k3_kl; one that generated nothing has none.

    Args:
        ranks: which replica generated each sample.
        rollout, train: log-probabilities (T,) of each sample's response, from its engine and from the trainer.
        masks: (T,) of each sample, not 0 where the token is the model's own.
        threshold: where importance weights are clipped, for `ess`.

    Raises:
        ValueError: a log-probability is not finite.
    """
    metrics = {}
    for rank in sorted(set(ranks)):
        mine = [sample for sample, generated_by in enumerate(ranks) if generated_by == rank]
        kept = torch.cat([masks[sample] for sample in mine]) != 0
        if not kept.any():
            continue
        pair = (torch.cat([each[sample] for sample in mine])[kept] for each in (rollout, train))
        found = mismatch(*pair, threshold)
        metrics |= {f"rollout_corr/replica{rank}/{name}": getattr(found, name) for name in FIGURES}
        metrics[f"rollout_corr/replica{rank}/samples"] = len(mine)
    return metrics


def upper_threshold(rollout_correction: dict | None) -> float:
    """Return where verl clips importance weights: 2.0, "2.0", or "0.5_2.0" with a lower one; ours if it is not set."""
    threshold = (rollout_correction or {}).get("rollout_is_threshold")
    return THRESHOLD if threshold is None else float(str(threshold).rpartition("_")[2])
