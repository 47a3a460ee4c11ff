"""verl's vLLM replica with our worker extension; it collects receipts, and marks each sample with its rank."""

import asyncio
import functools
import time
from typing import Any
from uuid import uuid4

import ray
from verl.checkpoint_engine.base import CheckpointEngineWorker
from verl.single_controller.ray import RayClassWithInitArgs
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from ascend_quant.exact.stages import Recorded
from ascend_quant.integrations.verl import compat
from ascend_quant.integrations.verl.metrics.receipts import Metrics, WorkerReport
from ascend_quant.integrations.verl.metrics.replica_mismatch import REPLICA
from ascend_quant.integrations.verl.sending import hooks
from ascend_quant.integrations.verl.sending import socket_names as sockets
from ascend_quant.integrations.verl.sending.delta_sync import receiving
from ascend_quant.integrations.verl.sending.sync_memory import BESIDE, CACHE
from ascend_quant.integrations.verl.settings import QUANTIZATION, bucket_bytes, keeps_memory, patches_of, wants_proof
from ascend_quant.integrations.wrapping import install
from ascend_quant.transfer.delta import Receiver

WAKE = "refit/wake_ms"
BUCKETS = 4  # of a sync to a disaggregated engine: two in verl's transport, one in the engine, one for a large tensor


class RefitHttpServer(vLLMHttpServer):
    """verl's vLLM server, whose KV cache wakes up asynchronously: requests wait for it, and get its error."""

    waking = 0.0  # seconds of the wake-up for which the last sync waited
    _cache_stays = False
    _cache_wakes: asyncio.Future[None] | None = None
    _receipts: asyncio.Future[list[WorkerReport | None]] | None = None  # requested before the cache wakes up

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        sockets.name_for_engine()

    async def refit_receipts(self) -> list[WorkerReport | None]:
        """Return the last refit's report of each worker, by engine and tensor-parallel rank."""
        asked, self._receipts = self._receipts or self._asked_for_receipts(), None
        return [report and self._with_wake_up(*report) for report in await asked]

    def _with_wake_up(self, metrics: Metrics, digests: dict[str, str]) -> WorkerReport:
        return {**metrics, WAKE: metrics[WAKE] + 1e3 * self.waking}, digests

    def _asked_for_receipts(self) -> asyncio.Future[list[WorkerReport | None]]:
        return asyncio.ensure_future(self._ask_workers("refit_receipt"))

    async def _ask_workers(self, method: str) -> list[Any]:
        """Call a method on every worker; return their answers, engine by engine."""
        engines = await compat.ask_every_engine(self.engine, method)
        return [found for workers in engines for found in workers]

    async def refit_takes_codes(self) -> list[tuple[str, list[str], list[str]]]:
        """Ask each worker which weights it accepts pre-quantized, see `RefitWorkerExtension.refit_takes_codes`."""
        return await self._ask_workers("refit_takes_codes")

    async def exact_fingerprint(self) -> list[dict[str, str]]:
        """Return the fingerprint of every worker, see `ascend_quant.exact.fingerprint`."""
        return await self._ask_workers("exact_fingerprint")

    async def exact_stages(self, tokens: list[int], sampling: dict[str, Any]) -> list[dict[str, Recorded]]:
        """Return every worker's stages of a prefill of these tokens; the engine must be idle."""
        await self._ask_workers("exact_record")
        await self.generate(tokens, sampling, f"exact-{uuid4().hex}")
        return await self._ask_workers("exact_recorded")

    async def wake_up(self, tags: list[str] | None = None) -> None:
        if tags == [CACHE] and self.node_rank == 0:  # the last step of a sync; the engine handles requests in order
            self._receipts = self._asked_for_receipts()
            self._cache_wakes = asyncio.ensure_future(super().wake_up(tags))
            await asyncio.sleep(0)
            return
        await self._awake()
        start = time.perf_counter()
        await super().wake_up(tags)
        self.waking = time.perf_counter() - start

    async def sleep(self) -> None:
        await self._awake()
        await super().sleep()

    async def release_kv_cache(self) -> None:
        """Release the KV cache for a sync to a disaggregated engine, unless the sync's buffers fit beside it.

        If they fit, neither the cache, which is empty by now, nor the weights are released and allocated again.
        """
        self._cache_stays = await self._has_room_beside()
        if not self._cache_stays:
            await super().release_kv_cache()

    async def resume_kv_cache(self) -> None:
        if not self._cache_stays:
            await super().resume_kv_cache()

    async def _has_room_beside(self) -> bool:
        """Return whether every device of the engine has enough memory for a sync besides the cache."""
        if self.node_rank != 0 or not self.config.free_cache_engine or not keeps_memory(self.config):
            return False
        needed = BUCKETS * bucket_bytes(self.config) + BESIDE
        return min(await self._ask_workers("refit_free_bytes")) >= needed

    async def _awake(self) -> None:
        """Wait until the KV cache is awake; raises the error of the wake-up."""
        if self._cache_wakes is not None:
            await asyncio.shield(self._cache_wakes)  # cancelling a request does not cancel the wake-up

    async def refit_quantization(self) -> str | None:
        """Return a description of the replica's quantization options; None if the quantization is not ours."""
        return (await self.engine.collective_rpc("refit_quantization"))[0]

    async def generate(self, *args: Any, **kwargs: Any) -> TokenOutput:
        await self._awake()
        output = await super().generate(*args, **kwargs)
        output.extra_fields[REPLICA] = self.replica_rank
        return output

    def _get_worker_extension_cls(self) -> str:
        extension = "RefitWorkerExtension" if wants_proof(self.config) else "UnprovedWorkerExtension"
        return f"ascend_quant.integrations.verl.receiving.worker.{extension}"

    def _apply_quantization(self) -> tuple[str | None, dict[str, Any]]:
        if self.config.quantization == QUANTIZATION:
            return QUANTIZATION, {}
        return super()._apply_quantization()


class RelayWorker(CheckpointEngineWorker):
    """A worker next to a disaggregated engine: it receives the weights and forwards them like a colocated trainer.

    Attributes:
        receiver: decodes delta syncs; None if all weights are sent.
    """

    receiver: Receiver | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        install(hooks.WHEN_WEIGHTS_ARRIVE)  # before a user's module imports the function by name
        super().__init__(*args, **kwargs)
        if (patches := patches_of(self.rollout_config)) is not None:
            reserve = bucket_bytes(self.rollout_config) + BESIDE if patches.beside_engines else None
            self.receiver = Receiver(patches.base_on, reserve)
            receiving(self.checkpoint_engine, self.receiver)
        install((*hooks.WHEN_WEIGHTS_LEAVE, *hooks.WHEN_PASSED_ON))  # the rollout's module has been imported by now

    @functools.wraps(CheckpointEngineWorker.update_weights)
    async def update_weights(self, *args: Any, **kwargs: Any) -> None:
        await super().update_weights(*args, **kwargs)  # raises if the engine has not verified the transfer
        if self.receiver is not None:
            self.receiver.settle()


class RefitReplica(vLLMReplica):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(RefitHttpServer)

    def get_ray_class_with_init_args(self) -> RayClassWithInitArgs:
        asked = super().get_ray_class_with_init_args()
        return RayClassWithInitArgs(ray.remote(RelayWorker), *asked.args, **asked.kwargs)


def load() -> type[RefitReplica]:
    return RefitReplica
