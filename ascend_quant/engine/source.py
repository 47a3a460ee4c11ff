"""The state of one tensor in the engine's loaders: how much of it has been written, and where its rows are."""

import torch

from ascend_quant.refit.matrices import offset_in
from ascend_quant.refit.plan import Entry
from ascend_quant.transfer.errors import RefitError


class Source:
    """A tensor of the checkpoint or the trainer, with the number of elements written so far."""

    def __init__(self, name: str, tensor: torch.Tensor, slot: int, sent: torch.Tensor, coded: bool):
        self.name, self.tensor, self.slot, self.taken, self.padded = name, tensor, slot, 0, False
        self.skipped = False  # by design, according to the engine's loader
        self.elsewhere: str | None = None  # description of another buffer into which it was copied
        self.sizes: dict[str, dict[int, int]] = {}  # by resident, see `ResidentWeight.whole_sizes`
        self.nbytes, self.coded = sent.nbytes, coded  # size as sent
        self.entry = Entry(sent.shape, prequantized=coded)

    def wanted(self) -> int | None:
        """Return how many elements the model expects of the tensor; None if unknown."""
        sizes = list(self.sizes.values())
        return sum(sum(found.values()) for found in sizes) if sizes and all(sizes) else None

    def holds(self, shard: torch.Tensor) -> bool:
        """Return whether `shard` is a view of this tensor."""
        mine = self.tensor
        same = shard.dtype == mine.dtype and shard.device == mine.device
        return same and shard.untyped_storage().data_ptr() == mine.untyped_storage().data_ptr()

    def of_rows(self, per_row: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
        """Return the part of a per-row tensor for the rows of `shard`, a view of this contiguous matrix."""
        length = self.tensor.shape[1]
        strides = shard.stride()[:-1]
        if shard.stride(-1) != 1 or any(stride % length for stride in strides):
            raise RefitError(
                f"{self.name}: the engine transposes this tensor, so the profile's frozen scales do not fit; "
                "leave the option frozen_scales out"
            )
        first = offset_in(shard, self.tensor) // length
        return per_row.as_strided(shard.shape[:-1], [stride // length for stride in strides], first)

    def whole_rows(self, shard: torch.Tensor) -> torch.Tensor | None:
        """Return the complete rows of which `shard`, a view of this tensor, is a slice; None if there are none."""
        tensor = self.tensor
        if shard.dim() == 0:
            return None
        along = [d for d in range(tensor.dim()) if tensor.stride(d) == shard.stride(-1) and tensor.shape[d] > 1]
        if not along:
            return None
        length, stride = tensor.shape[along[-1]], tensor.stride(along[-1])
        # rows of codes are followed by their scales
        distance = tensor.stride(-2) if self.coded and tensor.dim() > 1 else length
        behind = offset_in(shard, tensor) // stride % distance
        shape, strides = (*shard.shape[:-1], length), shard.stride()
        return shard.as_strided(shape, strides, shard.storage_offset() - behind * stride)
