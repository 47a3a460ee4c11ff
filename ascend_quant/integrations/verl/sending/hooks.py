"""Monkeypatches of verl for weight syncs, on both ends: functions that are replaced at run time, and why.

They are part of the list in verl/hooks.py.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

from ascend_quant.integrations.verl.sending.delta_sync import asking_for_a_base
from ascend_quant.integrations.verl.sending.kv_amax import looking
from ascend_quant.integrations.verl.sending.sync_memory import with_cache_kept, with_own_stream
from ascend_quant.integrations.verl.training.hooks import OWN_ENTRY
from ascend_quant.integrations.wrapping import Hook, ManualPatch

_HERE = "ascend_quant.integrations.verl.sending"


def with_answered_sockets_of_this_run(original: Callable) -> Callable:
    """Wrap `BucketedWeightSender.__init__`: its ZMQ address is unique to the run, its sockets have a watchdog."""
    from ascend_quant.integrations.verl.sending.socket_names import socket_name_for_run
    from ascend_quant.integrations.verl.sending.zmq_watchdog import AnsweredContext

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.zmq_handle = socket_name_for_run(self.zmq_handle)
        self.zmq_context = AnsweredContext(self.zmq_context, self.zmq_handle)

    return __init__


def with_aligned_chunks(original: Callable) -> Callable:
    """Wrap `merge_weight_chunks`: a chunk at an offset that is not aligned for its dtype is cloned."""

    async def aligned(chunks: AsyncIterator[tuple[Any, Any]]) -> AsyncIterator[tuple[Any, Any]]:
        async for meta, chunk in chunks:
            yield meta, chunk if chunk.storage_offset() % meta.dtype.itemsize == 0 else chunk.clone()

    def merge_weight_chunks(chunks: AsyncIterator[tuple[Any, Any]], bucket_size: int) -> Any:
        return original(aligned(chunks), bucket_size)

    return merge_weight_chunks


WITH_KV_SCALES = (
    Hook(
        ("transformers.modeling_utils:AttentionInterface.get_interface",),
        looking,
        why="q, k and v after norms and rotary embedding exist only inside the attention's forward, whichever function "
        "it calls; the scales of the rollout's KV cache are measured on them",
        versions="transformers 5.9; versions without this method are refused",
        off="a kv_cache without static scales; outside a measuring pass it does nothing",
    ),
)

# Applied if that module has been imported.
WHEN_WEIGHTS_LEAVE = (
    Hook(
        ("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender.__init__",),
        with_answered_sockets_of_this_run,
        why="verl's sender waits for each answer without a timeout; and two runs on one host, each with its own Ray, "
        "use the same address, so the engines of one would receive the weights of the other",
        versions="verl 0.9.1 and bcb6386",
        off=OWN_ENTRY,
        optional=True,
        loaded=True,
    ),
)

# Applied in processes that receive weights through a checkpoint engine.
WHEN_WEIGHTS_ARRIVE = (
    Hook(
        ("verl.checkpoint_engine.base:merge_weight_chunks",),
        with_aligned_chunks,
        why="verl's checkpoint engines (nccl, which on NPUs is HCCL, and nixl) pack tensors without gaps and view them "
        "in place: float32 scales at an odd byte offset cannot be viewed, and the sync fails",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
        optional=True,
        everywhere=True,
    ),
)

# Applied in a relay worker, which forwards received weights to an engine.
WHEN_PASSED_ON = (
    Hook(
        ("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:get_torch_device",),
        with_own_stream,
        why="verl's sender synchronizes the whole device before it hands over a bucket, and so also waits for the next "
        "bucket, which is still arriving from the trainer: the two do not overlap",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
        optional=True,
        loaded=True,
    ),
)

WITH_CACHE_KEPT = (
    Hook(
        (
            "verl.workers.engine_workers:get_torch_device",
            "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:get_torch_device",
            "verl.utils.fsdp_utils:get_torch_device",  # where weights are offloaded to the host
        ),
        with_cache_kept,
        why="before and after a sync verl empties the cache of the trainer's allocator, even if the engine has enough "
        "memory beside it; this takes 0.27 of the 0.69 s of a 7B sync on two H100s, and verl has no setting for it",
        versions="verl 0.9.1",
        off="the option memory=release (docs/verl.md)",
        optional=True,
        loaded=True,
    ),
)

WITH_PATCHES = (
    Hook(
        ("verl.checkpoint_engine.base:CheckpointEngineManager.build_process_group",),
        asking_for_a_base,
        why="a delta may be sent only if every engine has the sync that it is relative to, which only the driver can "
        "know; verl calls this function before each sync, and all ends prepare in it",
        versions="verl 0.9.1",
        off="another `send` than delta",
    ),
)

HOOKS = (
    *WITH_KV_SCALES,
    *WHEN_WEIGHTS_LEAVE,
    *WHEN_WEIGHTS_ARRIVE,
    *WHEN_PASSED_ON,
    *WITH_CACHE_KEPT,
    *WITH_PATCHES,
)

MANUAL_PATCHES = (
    ManualPatch(
        "get_per_tensor_param of the training engine",
        f"{_HERE}.sender:SendingTrainingWorker.__init__",
        why="checksums are computed from the weights before any transport",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
    ),
    ManualPatch(
        "to of the training engine",
        f"{_HERE}.sender:SendingTrainingWorker.__init__",
        why="the weights to send are prepared before an update moves them to the host, from where verl would bring "
        "them back",
        versions="verl 0.9.1",
        off="the option memory=release (docs/verl.md)",
    ),
    ManualPatch(
        "resume and update_weights of one rollout adapter, during a sync",
        f"{_HERE}.sync_memory:overlap_wake_up",
        why="verl waits for the engine to wake up before it prepares the first weights, which needs no engine",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
    ),
    ManualPatch(
        "receive_weights of a checkpoint engine, and its additional method refit_has",
        f"{_HERE}.delta_sync:receiving",
        why="deltas arrive, which are applied before the engine gets the weights; verl calls its checkpoint engines by "
        "method names",
        versions="verl 0.9.1",
        off="another `send` than delta",
    ),
    ManualPatch(
        "an additional method of a checkpoint engine, refit_against, and its bucket_size",
        f"{_HERE}.delta_sync:telling",
        why="the same: a delta is relative to the sync that all engines have, and travels in small buckets",
        versions="verl 0.9.1",
        off="another `send` than delta",
    ),
)
