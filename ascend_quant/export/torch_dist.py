"""Slices of the tensors of a Megatron `torch_dist` checkpoint, read where the ranks have left them.

torch_dist is the format of torch.distributed.checkpoint: `.metadata` says which piece of which tensor is where in the
*.distcp files. A tensor can be all layers' experts at once, far larger than memory; a slice is read from its pieces
alone. No process group, no GPU and no Megatron is needed.
"""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.utils import _create_file_view

from ascend_quant.export.errors import ExportError
from ascend_quant.export.metadata import read_metadata


class TorchDist:
    """A checkpoint folder.

    Attributes:
        sizes: of every tensor, by its key.
        dtypes: of every tensor, by its key.
    """

    def __init__(self, folder: Path):
        """Read `.metadata`.

        Raises:
            ExportError: there is none, or what `read_metadata` refuses.
        """
        self.folder = folder
        found = read_metadata(folder / ".metadata")
        stored = found.state_dict_metadata.items()
        self._places = found.storage_data
        self._tensors = {key: one for key, one in stored if isinstance(one, TensorStorageMetadata)}
        self.sizes = {key: tuple(one.size) for key, one in self._tensors.items()}
        self.dtypes = {key: one.properties.dtype for key, one in self._tensors.items()}

    def read(self, key: str, leading: Sequence[int] = ()) -> torch.Tensor:
        """The slice [leading[0], leading[1], ...] of a tensor, in the dtype it was saved in.

        Raises:
            ExportError: a file is missing or cut off, holds something else, or no piece holds some of the slice.
        """
        size = self.sizes[key]
        offsets = torch.Size((*leading, *(0 for _ in size[len(leading) :])))
        sizes = torch.Size((*(1 for _ in leading), *size[len(leading) :]))
        wanted = ChunkStorageMetadata(offsets, sizes)
        items = create_read_items_for_chunk_list(key, self._tensors[key], [wanted])
        overlap = any(_overlap(*pair) for pair in combinations(items, 2))
        if overlap or sum(item.lengths.numel() for item in items) != sizes.numel():
            raise ExportError(
                f"{self.folder}: no rank has saved some of {key} {list(leading)}: the save was interrupted"
            )
        slice_ = torch.empty(sizes, dtype=self.dtypes[key])
        for item in items:
            piece = self._piece(key, item.storage_index)
            try:
                part = _narrowed(piece, item.storage_offsets, item.lengths)
                _narrowed(slice_, item.dest_offsets, item.lengths).copy_(part)
            except (RuntimeError, IndexError) as error:
                raise self._unreadable(key, f"a piece of {tuple(piece.shape)}") from error
        return slice_.reshape(size[len(leading) :])

    def _piece(self, key: str, index: MetadataIndex) -> torch.Tensor:
        """What one rank has saved of a tensor."""
        if (info := self._places.get(index)) is None:
            raise self._unreadable(key, "no file holds it")
        if getattr(info, "transform_descriptors", None):
            raise self._unreadable(key, f"it is stored by {info.transform_descriptors!r:.80}")
        try:
            if (path := self.folder / info.relative_path).is_fifo():
                raise OSError(f"{path} is a pipe")
            with path.open("rb") as file:
                view = _create_file_view(file, info.offset, info.length)
                piece = torch.load(view, map_location="cpu", weights_only=True)
        except Exception as error:  # a missing file, or a piece that is cut off, raises anything
            raise self._unreadable(key, repr(error)) from error
        if not isinstance(piece, torch.Tensor) or piece.dtype != self.dtypes[key]:
            found = getattr(piece, "dtype", type(piece).__name__)
            raise self._unreadable(key, f"{found} is stored, {self.dtypes[key]} in .metadata")
        return piece.detach()

    def _unreadable(self, key: str, why: str) -> ExportError:
        return ExportError(f"{self.folder}: {key} cannot be read ({why:.200}); copy the checkpoint again")


def _narrowed(tensor: torch.Tensor, offsets: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
    for dim, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        tensor = tensor.narrow(dim, offset, length)
    return tensor


def _overlap(one: ReadItem, other: ReadItem) -> bool:
    """Whether two pieces hold the same element."""
    pairs = zip(one.dest_offsets, one.lengths, other.dest_offsets, other.lengths, strict=True)
    return all(first < end + length and end < first + size for first, size, end, length in pairs)
