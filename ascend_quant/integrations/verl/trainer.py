"""verl's trainer in any mode: its actors send checksums, and each step's metrics include the refits' receipts.

With several replicas, times and mismatch are also reported per replica.
"""

import time
from collections.abc import Callable
from typing import Any

import ray
import transfer_queue

from ascend_quant.integrations.verl.metrics.replica_mismatch import ranks_of, replica_mismatch
from ascend_quant.integrations.verl.metrics.start_up import StartUp
from ascend_quant.integrations.verl.metrics.sync_reports import SyncReports, agree_on_codes, let_actors_send
from ascend_quant.integrations.verl.training.effective_sample import EffectiveSample

STEP = "step 1"
POLL_SECONDS = 0.25  # each poll lists the TransferQueue
TIMED = ("gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "update_weights")


class EndOfStage:
    """Descriptor of a trainer attribute whose assignment ends a start-up stage.

    Args:
        stage: name of the stage.
        seconds_inside: maps the trainer and the assigned value to the seconds of the stage's parts.
    """

    def __init__(self, stage: str, seconds_inside: Callable[[Any, Any], dict[str, float]] = lambda *_: {}) -> None:
        self._stage, self._seconds_inside = stage, seconds_inside

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, trainer: Any, owner: type | None = None) -> Any:
        if trainer is None:
            return self
        try:
            return vars(trainer)[self._name]
        except KeyError:
            raise AttributeError(f"{type(trainer).__name__} has not set {self._name} yet") from None

    def __set__(self, trainer: Any, value: Any) -> None:
        vars(trainer)[self._name] = value
        trainer.start_up.mark(self._stage, self._seconds_inside(trainer, value))


def _seconds_of_actor(trainer: Any, _: Any) -> dict[str, float]:
    workers = trainer.actor_rollout_wg
    return {"actor": max(workers.seconds_of_actor())} if hasattr(workers, "seconds_of_actor") else {}


def _seconds_of_engine(_: Any, manager: Any) -> dict[str, float]:
    replicas = manager.get_replicas()
    return ray.get(replicas[0].servers[0].start_up_seconds.remote()) if replicas else {}


class RefitTrainer:
    """Mixin before verl's trainer class: weight syncs with receipts, mismatch per replica, and start-up times."""

    actor_rollout_wg = EndOfStage("workers placed")
    reward_loop_manager = EndOfStage("models", _seconds_of_actor)
    llm_server_manager = EndOfStage("engines", _seconds_of_engine)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.start_up = StartUp()
        self.prompts_sent = 0.0  # seconds until the last step's prompts reached the agent loops
        self.sync_reports = SyncReports()
        super().__init__(*args, **kwargs)
        self.effective_sample = EffectiveSample(self.config.algorithm.get("rollout_correction"))
        # In sync mode, verl polls for the last answer every 2 s, which wastes 1 s on average; the async modes compare
        # their waiting time with this interval.
        if self.trainer_mode == "sync":
            self.replay_buffer.poll_interval = POLL_SECONDS

    def _init_dataloader(self) -> None:
        self.start_up.mark("trainer")
        super()._init_dataloader()
        self.start_up.mark("dataset")

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        self.start_up.mark("checkpoint")

    def on_init_end(self) -> None:
        super().on_init_end()
        self.start_up.mark("first sync")
        agree_on_codes(self.config, self._synced(), self.actor_rollout_wg)

    def on_train_begin(self) -> None:
        self.start_up.mark("before step 1")  # includes agent loops, loggers, and a validation if there is one
        super().on_train_begin()

    def prepare_step(self) -> dict[str, Any]:
        """Time `prepare_step`, which verl does not; in step 1 it waits for the agent loop processes to start."""
        start = time.perf_counter()
        found = super().prepare_step()
        self.prompts_sent = time.perf_counter() - start
        return found

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()  # verl assigns worker classes to roles here
        let_actors_send(self.role_worker_mapping, self.config)

    def _consume_sync_metrics(self) -> dict[str, Any]:
        return {**super()._consume_sync_metrics(), **self._last_sync(), **self._first_step()}

    def _first_step(self) -> dict[str, float]:
        """Return the start-up metrics, once, and print the table to the log."""
        if STEP in self.start_up.stages:
            return {}
        timed = {name: seconds for name, seconds in self.timing_raw.items() if name in TIMED}
        parts = {"prompts sent": self.prompts_sent, **timed}
        self.start_up.mark(STEP, {f"{name} 1": seconds for name, seconds in parts.items()})
        print(self.start_up.table(), flush=True)  # verl suppresses our log lines below WARNING
        return self.start_up.metrics()

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
