"""verl's trainer, whichever mode: its actors send digests, and the refits' receipts are among each step's metrics."""

import logging
from typing import Any

import ray
from verl.plugin.platform import get_platform
from verl.workers.engine_workers import ActorRolloutRefWorker

from ascend_quant.integrations.verl import settings
from ascend_quant.integrations.verl.receipts import merge
from ascend_quant.integrations.verl.sender import sends_digests
from ascend_quant.integrations.verl.versions import plain_class

logger = logging.getLogger(__name__)


class RefitTrainer:
    """Mixed in before verl's trainer class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Only a platform that asks for it, and only in sync mode: on accelerators a step lasts minutes, each poll costs
        # the TransferQueue a listing, and the async modes compare their waiting time with this interval.
        seconds = getattr(get_platform(), "replay_poll_seconds", None)
        if seconds is not None and self.trainer_mode == "sync":
            self.replay_buffer.poll_interval = seconds

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()  # here verl says which role is played by which worker class
        if not settings.wants_proof(self.config.actor_rollout_ref.rollout):
            return
        for role, actor_class in self.role_worker_mapping.items():
            worker_class = plain_class(actor_class)
            if issubclass(worker_class, ActorRolloutRefWorker):
                self.role_worker_mapping[role] = ray.remote(sends_digests(worker_class))

    def _consume_sync_metrics(self) -> dict[str, Any]:
        return {**super()._consume_sync_metrics(), **merge(self._receipts())}

    def _receipts(self) -> list[list[dict[str, float] | None]]:
        # the last manager's replicas are those that were synced at the end of this step
        replicas = self._rollout_server_managers()[-1].get_replicas()
        return ray.get([replica.servers[0].refit_receipts.remote() for replica in replicas])


def with_refits(trainer_class: type) -> type:
    return type(f"Refit{trainer_class.__name__}", (RefitTrainer, trainer_class), {})
