"""Slices of the tensors of a Megatron `torch_dist` checkpoint, read from the files that the ranks have written.

torch_dist is the format of torch.distributed.checkpoint: `.metadata` maps pieces of tensors to positions in the
*.distcp files. A tensor may contain the experts of all layers and be far larger than memory, so slices are read from
their pieces. No process group, GPU or Megatron is needed.

`.metadata` is a pickle, which can run any code, and the checkpoint may be untrusted. So only classes of that package
may be constructed, and other names are not looked up.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, filesystem, metadata, planner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from ascend_quant.profile.checkpoints import BadCheckpoint

CLASSES = {
    metadata: (
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "BytesStorageMetadata"),
        *("ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING"),
    ),
    planner: ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData"),  # Megatron stores plans
    filesystem: ("_StorageInfo",),
    torch: ("Size",),
    torch.serialization: ("_get_layout",),
}
KNOWN = {
    (module.__name__, name): getattr(module, name)
    for module, names in CLASSES.items()
    for name in names
    if hasattr(module, name)
}
KNOWN |= {("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
PATHS = ("Path", "PosixPath", "PurePosixPath")


class _NotKnown(Exception):
    """Raised if a pickle refers to a name that no `.metadata` has."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return one of the known classes; raise _NotKnown for other names. pickle calls this for every name."""
        if module.partition(".")[0] == "pathlib" and name in PATHS:
            return PurePosixPath
        if (module, name) not in KNOWN:
            raise _NotKnown(f"{module}.{name}")
        return KNOWN[module, name]


def read_metadata(path: Path) -> Metadata:
    """Read the names and positions of a checkpoint's tensors.

    Raises:
        BadCheckpoint: the file cannot be read, refers to other classes, or to pieces outside of the folder.
    """
    try:
        with path.open("rb") as file:
            found = _Unpickler(file).load()
    except _NotKnown as error:
        raise BadCheckpoint(
            f"{path} is a pickle that refers to {str(error)!r:.120}, which no checkpoint needs; it was not "
            "loaded, and no code in it was run"
        ) from error
    except Exception as error:  # a truncated pickle can raise any exception
        raise BadCheckpoint(f"{path} cannot be read ({error!r:.200}); copy the checkpoint again") from error
    if not isinstance(found, Metadata):
        raise BadCheckpoint(f"{path} is not checkpoint metadata: it contains a {type(found).__name__}")
    for info in found.storage_data.values():
        inside = PurePath(info.relative_path)
        if inside.is_absolute() or ".." in inside.parts:
            raise BadCheckpoint(f"{path}: a shard is in {inside}, outside the checkpoint's folder")
    return found


class TorchDist:
    """A checkpoint folder.

    Attributes:
        sizes: sizes of all tensors, by key.
        dtypes: dtypes of all tensors, by key.
    """

    def __init__(self, folder: Path):
        """Read `.metadata`.

        Raises:
            BadCheckpoint: there is none, or see `read_metadata`.
        """
        self.folder = folder
        found = read_metadata(folder / ".metadata")
        stored = found.state_dict_metadata.items()
        self._reader = FileSystemReader(folder)
        self._reader.set_up_storage_reader(found, is_coordinator=True)
        self._tensors = {key: one for key, one in stored if isinstance(one, TensorStorageMetadata)}
        self.sizes = {key: tuple(one.size) for key, one in self._tensors.items()}
        self.dtypes = {key: one.properties.dtype for key, one in self._tensors.items()}

    def read(self, key: str, leading: Sequence[int] = ()) -> torch.Tensor:
        """Read the slice [leading[0], leading[1], ...] of a tensor, in the dtype in which it was saved.

        Raises:
            BadCheckpoint: a file is missing or truncated, or the pieces do not cover the slice.
        """
        size = self.sizes[key]
        offsets = torch.Size((*leading, *(0 for _ in size[len(leading) :])))
        sizes = torch.Size((*(1 for _ in leading), *size[len(leading) :]))
        wanted = ChunkStorageMetadata(offsets, sizes)
        items = create_read_items_for_chunk_list(key, self._tensors[key], [wanted])
        if sum(item.lengths.numel() for item in items) != sizes.numel():
            raise BadCheckpoint(
                f"{self.folder}: part of {key} {list(leading)} was saved by no rank: the save was "
                "interrupted; use another checkpoint"
            )
        slice_ = torch.empty(sizes, dtype=self.dtypes[key])
        try:
            self._reader.read_data(LoadPlan(items), _Into(slice_))
        except Exception as error:  # a missing file or a truncated piece can raise any exception
            raise BadCheckpoint(
                f"{self.folder}: {key} cannot be read ({error!r:.200}); copy the checkpoint again"
            ) from error
        return slice_.reshape(size[len(leading) :])


class _Into(DefaultLoadPlanner):
    """A load planner that copies the pieces of one tensor into a slice."""

    def __init__(self, slice_: torch.Tensor):
        super().__init__()
        self.slice = slice_

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """Return the part of the slice that a piece fills."""
        ends = zip(read_item.dest_offsets, read_item.lengths, strict=True)
        return self.slice[tuple(slice(first, first + length) for first, length in ends)]
