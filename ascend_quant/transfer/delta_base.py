"""Storage of a delta sync's base: the bytes of the last weight sync.

A trainer's device rarely has memory for them besides its optimizer, so they are in host memory and are copied to the
device group by group: the next copy overlaps with the comparison of the current group (`Ahead`).
"""

from collections.abc import Sequence

import torch

Layout = list[tuple[str, str, list[int]]]  # name, dtype, shape of each tensor


class Base:
    """The concatenated bytes of the groups of one sync: the base of the next delta sync.

    Args:
        device: the storage device; None for that of the tensors.
        reserve: groups stay on the tensors' device as long as this many bytes remain free there.
    """

    def __init__(self, device: torch.device | None = None, reserve: int | None = None):
        self._device, self._reserve = device, reserve
        self.layouts: list[Layout] = []
        self.groups: list[torch.Tensor] = []

    def keep(self, i: int, layout: Layout, bytes_: torch.Tensor) -> None:
        """Store all bytes of group i."""
        if self._device not in (None, bytes_.device) and not self._has_room(bytes_.device):
            # pinned, since it is copied back at every sync
            kept = torch.empty_like(bytes_, device=self._device, pin_memory=bytes_.is_cuda)
            bytes_ = kept.copy_(bytes_)
        if i == len(self.groups):
            self.layouts.append(layout)
            self.groups.append(bytes_)
        else:
            self.layouts[i], self.groups[i] = layout, bytes_

    def patch(self, i: int, at: torch.Tensor, values: torch.Tensor) -> None:
        """Overwrite the bytes of group i at these offsets, from any device."""
        group = self.groups[i]
        group[at.to(group.device)] = values.to(group.device)

    def _has_room(self, device: torch.device) -> bool:
        """Return whether a group may stay on its device."""
        if self._reserve is None or device.type == "cpu":
            return False
        return torch.get_device_module(device).mem_get_info()[0] >= self._reserve


class Ahead:
    """Prefetches a base's groups for one sync, in order: a group is copied while the previous one is used.

    On an NPU nothing is prefetched: host memory is not pinned there, see `kernels/events.py`.
    """

    def __init__(self, groups: Sequence[torch.Tensor]):
        self._groups = groups
        self._coming: dict[int, tuple[torch.Tensor, torch.cuda.Event]] = {}
        self._beside: torch.cuda.Stream | None = None

    def read(self, i: int, device: torch.device) -> torch.Tensor:
        """Return group i on a device, read-only: if it is stored there, this is the base itself."""
        if self._groups[i].device == device:
            return self._groups[i]
        if device.type != "cuda":
            return self._groups[i].to(device)
        found, arrived = self._coming.pop(i, None) or self._begun(i, device)
        if i + 1 < len(self._groups) and self._groups[i + 1].device != device:
            self._coming[i + 1] = self._begun(i + 1, device)
        stream = torch.cuda.current_stream(device)
        stream.wait_event(arrived)
        found.record_stream(stream)  # the memory was allocated on another stream
        return found

    def _begun(self, i: int, device: torch.device) -> tuple[torch.Tensor, torch.cuda.Event]:
        self._beside = self._beside or torch.cuda.Stream(device)
        arrived = torch.cuda.Event()
        with torch.cuda.stream(self._beside):
            found = self._groups[i].to(device, non_blocking=True)
            arrived.record()
        return found, arrived
