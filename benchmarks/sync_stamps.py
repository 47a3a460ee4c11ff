"""What of a weight sync under verl is stamped, in trainer, server and engine: one table, for verl 0.9.1.

SYNC_STAMPS=FOLDER: where the stamps go; without it nothing is stamped. SYNC_STAMPS_WAIT=1: gathers, digests and loads
are each waited for on the device, so that their own time shows; the sync is slower for it.
"""

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.stamping import Recorder, Target, Watched

FOLDER, WAIT = "SYNC_STAMPS", "SYNC_STAMPS_WAIT"
OURS, VERLS, CUDA = "ours", "verl's", "cuda"  # of a target: found with our rollouts, with verl's own; on a GPU
ASKED, TAKEN = "asks the engine", "waits for the trainer"  # stamps of sockets' methods, which are no functions


def begin() -> None:
    """Stamp this process, if it is asked for."""
    if folder := os.environ.get(FOLDER):
        wait = wait_for_device if os.environ.get(WAIT) == "1" else lambda: None
        Recorder(Path(folder), TARGETS, wait).begin()


def wait_for_device() -> None:
    """Until what this thread has queued is done."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()  # not torch.cuda.synchronize, which is stamped


def tags(_: Any, args: tuple, kwargs: dict) -> str:
    """What `resume` and `wake_up` wake."""
    given = kwargs.get("tags", args[1] if len(args) > 1 else None)
    return ",".join(given) if given else "all"


def received_flat(_: Any, args: tuple, __: dict) -> int:
    """Bytes that a rank gets of others in one of our gathers."""
    import torch.distributed as dist

    _, share = args
    return 0 if share.group is None else (dist.get_world_size(share.group) - 1) * share.bytes


def received(result: Any, args: tuple, _: dict) -> int:
    """Bytes that a rank gets of others for one whole tensor."""
    return result.nbytes - args[0].to_local().nbytes


def loaded(_: Any, args: tuple, __: dict) -> int:
    """Bytes of a bucket's tensors."""
    return sum(tensor.nbytes for _, tensor in args[1])


def handle(_: Any, args: tuple, __: dict) -> str:
    """By which a sender and its receiver find each other."""
    return args[0].zmq_handle


def replica(_: Any, args: tuple, __: dict) -> int:
    """By which a trainer and its server find each other."""
    return args[0].replica_rank


def watch_sender(recorder: Recorder, sender: Any) -> None:
    sender.socket = Watched(recorder, sender.socket, {"recv": ASKED})


def watch_receiver(recorder: Recorder, receiver: Any) -> None:
    receiver.socket = Watched(recorder, receiver.socket, {"recv_pyobj": TAKEN})


_ROLLOUT = "verl.workers.rollout.vllm_rollout"
_TRANSFER, _SERVER = f"{_ROLLOUT}.bucketed_weight_transfer", f"{_ROLLOUT}.vllm_async_server"
_OURS = "ascend_quant.integrations.verl"
TARGETS = (
    # the driver
    Target("verl.trainer.ppo.v1.trainer_sync", "PPOTrainerSync.on_step_end", outermost=True),
    # a trainer
    Target("verl.workers.engine_workers", "ActorRolloutRefWorker.update_weights", outermost=True),
    Target("verl.workers.engine_workers", "set_expandable_segments"),
    Target(f"{_ROLLOUT}.vllm_rollout", "ServerAdapter.resume", note=tags),
    Target(f"{_ROLLOUT}.vllm_rollout", "ServerAdapter.update_weights", note=replica),
    Target(f"{_ROLLOUT}.vllm_rollout", "ServerAdapter._execute_method"),
    Target("verl.workers.engine.fsdp.transformer_impl", "FSDPEngine.get_per_tensor_param"),
    Target(f"{_OURS}.compat", "fsdp2_shards", of=OURS),
    Target(f"{_OURS}.gathering", "own_share", waits=True, of=OURS),
    Target(f"{_OURS}.gathering", "Gather.__init__", note=received_flat, waits=True, of=OURS),
    Target(f"{_OURS}.gathering", "Gather.whole", waits=True, of=OURS),
    Target("torch.distributed.tensor", "DTensor.full_tensor", note=received, waits=True, of=VERLS),
    Target("ascend_quant.refit.proof", "Digests.add_all", waits=True, of=OURS),
    Target("ascend_quant.refit.proof", "Digests.as_dict", of=OURS),
    Target("ascend_quant.refit.proof", "encode", of=OURS),
    Target(_TRANSFER, "BucketedWeightSender.async_send_weights", note=handle),
    Target(_TRANSFER, "BucketedWeightSender._init_socket", follow=watch_sender),
    Target(_TRANSFER, "BucketedWeightSender._init_buffer"),
    Target(_TRANSFER, "BucketedWeightSender._direct_send_large_weight"),
    Target(_TRANSFER, "BucketedWeightSender._cleanup"),
    Target("torch.distributed.distributed_c10d", "barrier"),
    # a trainer and an engine
    Target("torch.cuda.memory", "empty_cache"),
    Target("torch.cuda", "synchronize"),
    Target("torch.cuda", "ipc_collect"),
    # a server
    Target(_SERVER, "vLLMHttpServer.wake_up", outermost=True, note=replica),
    Target(_SERVER, "vLLMHttpServer.clear_kv_cache", outermost=True, note=replica),
    Target(_SERVER, "vLLMHttpServer.set_global_steps", outermost=True, note=replica),
    Target("vllm.v1.engine.async_llm", "AsyncLLM.wake_up", note=tags),
    Target("vllm.v1.engine.async_llm", "AsyncLLM.reset_prefix_cache"),
    Target("vllm.v1.engine.async_llm", "AsyncLLM.reset_mm_cache"),
    Target("vllm.v1.engine.async_llm", "AsyncLLM.reset_encoder_cache"),
    # an engine's worker
    Target("vllm.v1.worker.gpu_worker", "Worker.wake_up", outermost=True, note=tags, of=CUDA),
    Target("vllm.device_allocator.cumem", "CuMemAllocator.wake_up", note=tags, of=CUDA),
    Target(f"{_ROLLOUT}.utils", "vLLMColocateWorkerExtension.update_weights_from_ipc", outermost=True, of=VERLS),
    Target(f"{_OURS}.worker", "RefitWorkerExtension.update_weights_from_ipc", outermost=True, of=OURS),
    Target(_TRANSFER, "BucketedWeightReceiver.receive_weights", note=handle),
    Target(_TRANSFER, "BucketedWeightReceiver._init_socket", follow=watch_receiver, of=VERLS),
    Target(_TRANSFER, "BucketedWeightReceiver._init_buffer"),
    Target(_TRANSFER, "BucketedWeightReceiver._cleanup"),
    Target(f"{_OURS}.receiver", "DrainingReceiver._init_socket", follow=watch_receiver, of=OURS),
    Target(f"{_ROLLOUT}.utils", "vLLMColocateWorkerExtension._update_weights", note=loaded, waits=True),
    Target("ascend_quant.refit.proof", "Receiving.take", of=OURS),
    Target("ascend_quant.refit.proof", "Receiving.prove", of=OURS),
    Target("ascend_quant.refit.session", "Refit.open", of=OURS),
    Target("ascend_quant.refit.session", "Refit.place", of=OURS),
    Target("ascend_quant.refit.session", "Refit.flush", of=OURS),
    Target("ascend_quant.refit.session", "Refit.close", of=OURS),
)
