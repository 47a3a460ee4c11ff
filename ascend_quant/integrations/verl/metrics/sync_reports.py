"""Weight syncs in verl's trainers: the actors that send, and the metrics of every sync."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import ray
from verl.workers.engine_workers import ActorRolloutRefWorker

from ascend_quant.integrations.verl import settings
from ascend_quant.integrations.verl.compat import plain_class
from ascend_quant.integrations.verl.metrics.receipts import merge
from ascend_quant.integrations.verl.metrics.renamed import with_old_names
from ascend_quant.integrations.verl.sending import hooks
from ascend_quant.integrations.verl.sending.options import SendOptions
from ascend_quant.integrations.verl.sending.sender import sends_weights
from ascend_quant.integrations.verl.sending.sync_metrics import slowest_of
from ascend_quant.integrations.wrapping import install
from ascend_quant.refit import RefitError
from ascend_quant.schemes import Scheme

logger = logging.getLogger(__name__)
Answer = tuple[str, Sequence[str], Sequence[str]]  # scheme, pre-quantized parameters, other parameters


def let_actors_send(role_worker_mapping: dict[Any, Any], config: Any) -> None:
    """Replace verl's actor worker with our subclass, for each of its roles.

    Args:
        role_worker_mapping: verl's mapping from roles to worker classes, changed in place.
        config: verl's whole configuration.
    """
    rollout = config.actor_rollout_ref.rollout
    options = SendOptions.of(rollout, config.trainer.device)
    if options.patches is not None:
        install(hooks.WITH_PATCHES)
    for role, actor_class in role_worker_mapping.items():
        worker_class = plain_class(actor_class)
        if issubclass(worker_class, ActorRolloutRefWorker):
            role_worker_mapping[role] = ray.remote(sends_weights(worker_class, options))


def agree_on_codes(config: Any, replicas: Sequence[Any], workers: Any) -> None:
    """Let the actors pre-quantize the parameters for which all replicas accept it, if the settings ask for it.

    Args:
        config: verl's whole configuration.
        replicas: the replicas that were synced.
        workers: the worker group that sends.

    Raises:
        RefitError: see `agreed`.
    """
    scheme = settings.sent_as(config.actor_rollout_ref.rollout)
    if scheme is None:
        return
    found = ray.get([replica.servers[0].refit_takes_codes.remote() for replica in replicas])
    names = agreed(scheme, [worker for of_one in found for worker in of_one])
    workers.send_codes(scheme, names)
    logger.warning("from the next weight sync on, %d parameters are sent pre-quantized as %s", len(names), scheme.name)


class SyncReports:
    """Collector of the metrics of one trainer's weight syncs."""

    def __init__(self) -> None:
        self._quantizations: dict[int, str | None] = {}  # by replica rank

    def of_last(self, replicas: Sequence[Any], workers: Any) -> dict[str, float]:
        """Return the metrics of the last weight sync: the engines' merged reports and the trainer's own metrics.

        Args:
            replicas: the replicas that were synced.
            workers: the worker group that sent.

        Raises:
            RefitError: see `receipts.merge`.
        """
        ranks = [replica.replica_rank for replica in replicas]
        reports = ray.get([replica.servers[0].refit_receipts.remote() for replica in replicas])
        if ranks != list(self._quantizations):
            self._quantizations = _quantizations(replicas)
        sent = slowest_of(workers.sync_metrics()) if hasattr(workers, "sync_metrics") else {}
        return with_old_names({**merge(dict(zip(ranks, reports, strict=True)), self._quantizations), **sent})


def _quantizations(replicas: Sequence[Any]) -> dict[int, str | None]:
    """Ask each replica for its quantization options and log them, by rank; they do not change later."""
    found = ray.get([replica.servers[0].refit_quantization.remote() for replica in replicas])
    quantizations = {replica.replica_rank: asked for replica, asked in zip(replicas, found, strict=True)}
    for rank, quantization in quantizations.items():
        # a warning because verl sets vLLM's log level to WARNING
        logger.warning("rollout replica %d serves with %s", rank, quantization)
    return quantizations


def agreed(scheme: Scheme, workers: Iterable[Answer]) -> frozenset[str]:
    """Return the names of the parameters that all workers accept pre-quantized in a scheme.

    Raises:
        RefitError: a worker quantizes to another scheme, or no worker accepts any.
    """
    taken: set[str] = set()
    refused: set[str] = set()
    for served, takes, refuses in workers:
        if served != scheme.name:
            raise RefitError(
                f"send={scheme.name}, but a rollout engine serves {served}: set scheme {scheme.name} for all "
                "replicas, or remove send"
            )
        taken.update(takes)
        refused.update(refuses)
    if not taken - refused:
        raise RefitError(
            f"send={scheme.name}, but the rollout engines accept no pre-quantized weight (experts that move "
            "between ranks have no fixed buffer): remove send"
        )
    return frozenset(taken - refused)
