"""verl's vLLM replica with our worker extension and with the refits' receipts."""

from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from ascend_quant.integrations.verl.leftovers import remove_leftovers
from ascend_quant.integrations.verl.settings import QUANTIZATION, wants_proof
from ascend_quant.integrations.vllm import log_with_vllm


class RefitHttpServer(vLLMHttpServer):
    async def refit_receipts(self) -> list[dict[str, float] | None]:
        """The last refit's metrics of each tensor-parallel rank."""
        return await self.engine.collective_rpc("refit_receipt")

    def _post_init(self, cuda_visible_devices: str) -> None:
        super()._post_init(cuda_visible_devices)
        log_with_vllm()  # vLLM's server raises the root logger's level to ERROR (through its SageMaker support)
        remove_leftovers()  # on this node; the run's own transfers start only when all servers are up

    def _get_worker_extension_cls(self) -> str:
        extension = "RefitWorkerExtension" if wants_proof(self.config) else "UnprovedWorkerExtension"
        return f"ascend_quant.integrations.verl.worker.{extension}"

    def _apply_quantization(self) -> tuple[str | None, dict[str, Any]]:
        if self.config.quantization == QUANTIZATION:
            return QUANTIZATION, {}
        return super()._apply_quantization()


class RefitReplica(vLLMReplica):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(RefitHttpServer)


def load() -> type[RefitReplica]:
    return RefitReplica
