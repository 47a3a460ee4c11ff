"""What verl mixes into vLLM's worker."""

from types import MethodType
from typing import Any

import torch


def monkey_patch_compute_logits(model: Any, vocab_size: int) -> None:
    own = model.compute_logits

    def compute_logits(self: Any, *args: Any) -> torch.Tensor:
        logits = own(*args)
        logits[..., vocab_size:] = -torch.inf
        return logits

    model.compute_logits = MethodType(compute_logits, model)


class vLLMColocateWorkerExtension:
    def __new__(cls, **kwargs: Any) -> "vLLMColocateWorkerExtension":
        return super().__new__(cls)

    def _update_weights(self, weights: list, peft_config: dict | None, base_sync_done: bool) -> None:
        self.model_runner.model.load_weights(weights)

    def _get_zmq_handle(self) -> str:
        return f"ipc:///tmp/rl-colocate-zmq-{self.device_uuid}.sock"
