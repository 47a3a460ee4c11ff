"""vLLM worker extension (`worker_extension_cls`) with the RPCs of `ascend-quant smoke`."""

from collections import Counter
from pathlib import Path
from typing import Any

import torch

from ascend_quant.integrations.vllm import refit_of, register
from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.schemes.tensors import buckets
from ascend_quant.smoke.kernels import profiler_into

register()  # with the package only in PYTHONPATH, vLLM's processes do not find its entry point


class Extension:
    """Methods that vLLM adds to its worker class; they return plain data."""

    def smoke_parameters(self) -> list[dict[str, Any]]:
        """Return how each of the engine's parameters is stored.

        Returns:
            For each parameter: parts, its checkpoint names in the order of its rows; weight, its factor in the digest
            of all residents; quantized, whether it has codes and scales; dtype, torch's name of its dtype otherwise.
        """
        return [
            {
                "parts": [part for part, _ in resident.parts],
                "weight": resident.weight,
                "quantized": bool(resident.codes),
                "dtype": str(resident.tensor.dtype).removeprefix("torch."),
            }
            for resident in refit_of(self.model_runner.get_model()).residents
        ]

    def smoke_formats(self) -> dict[str, int]:
        """Count the parameters in each of torch_npu's formats."""
        import torch_npu

        model = self.model_runner.get_model()
        return dict(Counter(str(torch_npu.get_npu_format(one.data)) for one in model.parameters()))

    def smoke_receipt(self) -> dict[str, Any]:
        """Return the last refit's receipt, or the first load's, with the digest of the current bytes."""
        refit = refit_of(self.model_runner.get_model())
        return refit.last_receipt.as_dict() | {"read_back": refit.digest()}

    def smoke_free(self) -> int:
        """Return the device's free memory in bytes."""
        return torch.get_device_module(self._smoke_device()).mem_get_info()[0]

    def smoke_weights(self) -> int:
        """Return the size of the model's parameters and buffers in bytes."""
        model = self.model_runner.get_model()
        return sum(one.nbytes for one in [*model.parameters(), *model.buffers()])

    def smoke_profile(self, folder: str | None = None) -> None:
        """Start profiling an NPU's kernels into the folder; without a folder, stop. Only rank 0 profiles."""
        if self.rank != 0:
            return
        if folder is not None:
            self.smoke_profiled = profiler_into(folder)
            self.smoke_profiled.start()
        else:
            torch.npu.synchronize()
            self.smoke_profiled.stop()

    def smoke_refit(self, folder: str, limit: int) -> int:
        """Refit with a checkpoint's tensors, the last first, in buckets of about `limit` bytes; return their number.

        Raises:
            RefitError: a tensor is refused, or some are missing; the message names them.
        """
        model, count, device = self.model_runner.get_model(), 0, self._smoke_device()
        checkpoint = Checkpoint(Path(folder))
        tensors = ((name, checkpoint.tensor(name)) for name in sorted(checkpoint.names, reverse=True))
        with refit_of(model).session():
            for bucket in buckets(tensors, limit):
                model.load_weights([(name, tensor.to(device)) for name, tensor in bucket])
                count += 1
        return count

    def _smoke_device(self) -> torch.device:
        return next(self.model_runner.get_model().parameters()).device
