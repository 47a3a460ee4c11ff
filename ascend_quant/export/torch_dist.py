"""Slices of the tensors of a Megatron `torch_dist` checkpoint, read where the ranks have left them.

torch_dist is the format of torch.distributed.checkpoint: `.metadata` says which piece of which tensor is where in the
*.distcp files. A tensor can be all layers' experts at once, far larger than memory; a slice is read from its pieces
alone. No process group, no GPU and no Megatron is needed.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, LoadPlan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from ascend_quant.export.errors import ExportError


class TorchDist:
    """A checkpoint folder.

    Attributes:
        sizes: of every tensor, by its key.
    """

    def __init__(self, folder: Path):
        """Read `.metadata`.

        Raises:
            ExportError: there is none, or it cannot be read.
        """
        self.folder = folder
        self._reader = FileSystemReader(folder)
        try:
            self._metadata = self._reader.read_metadata()
        except Exception as error:  # a pickle that is cut off raises anything
            raise ExportError(
                f"{folder / '.metadata'} cannot be read ({error!r}); copy the checkpoint again"
            ) from error
        stored = self._metadata.state_dict_metadata.items()
        self._tensors = {key: found for key, found in stored if isinstance(found, TensorStorageMetadata)}
        self.sizes = {key: tuple(found.size) for key, found in self._tensors.items()}
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)

    def read(self, key: str, leading: Sequence[int] = ()) -> torch.Tensor:
        """The slice [leading[0], leading[1], ...] of a tensor, in the dtype it was saved in.

        Raises:
            ExportError: a file is missing or cut off, or no piece holds some of the slice.
        """
        found, size = self._tensors[key], self.sizes[key]
        offsets = torch.Size((*leading, *(0 for _ in size[len(leading) :])))
        sizes = torch.Size((*(1 for _ in leading), *size[len(leading) :]))
        items = create_read_items_for_chunk_list(key, found, [ChunkStorageMetadata(offsets, sizes)])
        if sum(item.lengths.numel() for item in items) != sizes.numel():
            raise ExportError(
                f"{self.folder}: no rank has saved some of {key} {list(leading)}: the save was interrupted"
            )
        slice_ = torch.empty(sizes, dtype=found.properties.dtype)
        try:
            self._reader.read_data(LoadPlan(items), _Into(slice_)).wait()
        except Exception as error:  # a missing file, or a piece that is cut off, raises anything
            raise ExportError(f"{self.folder}: {key} cannot be read ({error!r}); copy the checkpoint again") from error
        return slice_.reshape(size[len(leading) :])


class _Into(DefaultLoadPlanner):
    """Puts what is read in one tensor."""

    def __init__(self, target: torch.Tensor):
        super().__init__()
        self.target = target

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        piece = self.target
        for dim, (offset, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            piece = piece.narrow(dim, offset, length)
        return piece

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """It is in place already."""
