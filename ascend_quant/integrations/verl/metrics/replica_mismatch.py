"""The mismatch of each replica, if there are several; verl's own metrics cover all samples together.

Our engine server stores the replica's rank in a sample's `extra_fields`, which verl passes on to the trainer.
"""

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ascend_quant.integrations.verl.metrics.estimators import mismatch

logger = logging.getLogger(__name__)

REPLICA = "ascend_quant_replica"  # the key in extra_fields


def ranks_of(extra_fields: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """Return the rank of the replica that generated each sample; None (logged once) if some samples lack it."""
    ranks = [extra.get(REPLICA) for extra in extra_fields]
    if None in ranks:
        _log_unattributed()
        return None
    return ranks


@functools.cache
def _log_unattributed() -> None:
    logger.warning(
        "mismatch per replica is not logged: samples do not name the replica that generated them. verl's "
        "asynchronous modes, which may resume a sample on another replica, drop it from extra_fields, and so "
        "do agent loops that make their own"
    )


def replica_mismatch(
    ranks: Sequence[int],
    rollout: Sequence[torch.Tensor],
    train: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor],
) -> dict[str, float]:
    """Compute each replica's mismatch, such as rollout_corr/replica0/k3_kl; replicas without samples are omitted.

    Args:
        ranks: rank of the replica that generated each sample.
        rollout, train: log-probabilities (T,) of each sample's response, from its engine and from the trainer.
        masks: (T,) of each sample, nonzero for tokens that the model generated.

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
        metrics[f"rollout_corr/replica{rank}/k3_kl"] = mismatch(*pair).k3_kl
        metrics[f"rollout_corr/replica{rank}/samples"] = len(mine)
    return metrics
