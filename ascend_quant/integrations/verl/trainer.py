"""verl's trainer, whichever mode, with the refits' receipts among the metrics of each step."""

import logging
from typing import Any

import ray
from verl.plugin.platform import get_platform

from ascend_quant.integrations.verl.receipts import merge

logger = logging.getLogger(__name__)


class RefitMetrics:
    """Mixed in before verl's trainer class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Only a platform that asks for it, and only in sync mode: on accelerators a step lasts minutes, each poll costs
        # the TransferQueue a listing, and the async modes compare their waiting time with this interval.
        seconds = getattr(get_platform(), "replay_poll_seconds", None)
        if seconds is not None and self.trainer_mode == "sync":
            self.replay_buffer.poll_interval = seconds

    def _consume_sync_metrics(self) -> dict[str, Any]:
        return {**super()._consume_sync_metrics(), **merge(self._receipts())}

    def _receipts(self) -> list[list[dict[str, float] | None]]:
        # the last manager's replicas are those that were synced at the end of this step
        replicas = self._rollout_server_managers()[-1].get_replicas()
        return ray.get([replica.servers[0].refit_receipts.remote() for replica in replicas])


def with_refit_metrics(trainer_class: type) -> type:
    return type(f"Refit{trainer_class.__name__}", (RefitMetrics, trainer_class), {})
