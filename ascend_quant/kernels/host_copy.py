"""A copy of a tensor that nobody waits for until it is read, in host memory."""

import torch


class HostCopy:
    """Begun where it is made: the tensor may be overwritten by what the current stream does next.

    On an NPU the copy stays on the device until it is read: torch_npu's pinned memory asks the CANN runtime for what it
    knows of graph capture, which not every CANN answers.
    """

    def __init__(self, tensor: torch.Tensor):
        self._event = None
        if tensor.device.type in ("cpu", "npu"):
            self._held = tensor.clone()
            return
        self._held = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        self._held.copy_(tensor, non_blocking=True)
        self._event = torch.get_device_module(tensor.device).Event()
        self._event.record()

    def read(self) -> torch.Tensor:
        """The copy; waits until the device has passed it."""
        if self._event is not None:
            self._event.synchronize()
        self._held = self._held.cpu()
        return self._held
