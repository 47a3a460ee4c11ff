"""verl's trainer in any mode: its actors send checksums, and each step's metrics include the refits' receipts.

With several replicas, times and mismatch are also reported per replica.
"""

from typing import Any

import transfer_queue

from ascend_quant.integrations.verl.metrics.replica_mismatch import ranks_of, replica_mismatch
from ascend_quant.integrations.verl.metrics.sync_reports import SyncReports, agree_on_codes, let_actors_send
from ascend_quant.integrations.verl.training.effective_sample import EffectiveSample

POLL_SECONDS = 0.25  # each poll lists the TransferQueue


class RefitTrainer:
    """Mixin before verl's trainer class: weight syncs with receipts, and mismatch per replica."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sync_reports = SyncReports()
        super().__init__(*args, **kwargs)
        self.effective_sample = EffectiveSample(self.config.algorithm.get("rollout_correction"))
        # In sync mode, verl polls for the last answer every 2 s, which wastes 1 s on average; the async modes compare
        # their waiting time with this interval.
        if self.trainer_mode == "sync":
            self.replay_buffer.poll_interval = POLL_SECONDS

    def on_init_end(self) -> None:
        super().on_init_end()
        agree_on_codes(self.config, self._synced(), self.actor_rollout_wg)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()  # verl assigns worker classes to roles here
        let_actors_send(self.role_worker_mapping, self.config)

    def _consume_sync_metrics(self) -> dict[str, Any]:
        return {**super()._consume_sync_metrics(), **self._last_sync()}

    def _last_sync(self) -> dict[str, float]:
        return self.sync_reports.of_last(self._synced(), self.actor_rollout_wg)

    def _synced(self) -> list[Any]:
        """Return the replicas that are synced at the end of each step."""
        return self._rollout_server_managers()[-1].get_replicas()

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        # before verl's code, which writes a response_mask without rejected tokens
        if self._compares_replicas():
            metrics.update(self._replica_mismatch(batch))
        return super()._compute_advantage(batch, metrics)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        updated = super()._update_actor(batch, metrics)
        self.effective_sample.look(self.global_steps, metrics)
        return updated

    def _compares_replicas(self) -> bool:
        """Return whether there are several replicas, with both log-probabilities of their tokens."""
        several = sum(len(manager.get_replicas()) for manager in self._rollout_server_managers()) > 1
        correction = self.config.algorithm.get("rollout_correction") or {}
        compared = self.config.actor_rollout_ref.rollout.calculate_log_probs and not correction.get("bypass_mode")
        return several and compared

    def _replica_mismatch(self, batch: Any) -> dict[str, float]:
        """Compute each replica's mismatch over the batch's samples, without padding samples."""
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]
        fields = ("extra_fields", "rollout_log_probs", "old_log_probs", "response_mask")
        data = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(fields))
        # dictionaries, which some TransferQueue backends wrap
        ranks = ranks_of([getattr(extra, "data", extra) for extra in data["extra_fields"]])
        if ranks is None:
            return {}
        return replica_mismatch(ranks, *(data[name].unbind() for name in fields[1:]))


def with_refits(trainer_class: type) -> type:
    """Subclass verl's trainer class with `RefitTrainer`."""

    class TrainerWithRefits(RefitTrainer, trainer_class):
        pass

    return TrainerWithRefits
