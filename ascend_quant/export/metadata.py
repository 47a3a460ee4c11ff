"""`.metadata` of torch.distributed.checkpoint: a pickle, of which the classes of that package alone are built.

Pickles run what they name; so nothing else is looked up, let alone called, and what comes out is checked: a checkpoint
may be from anybody.
"""

import math
import pickle
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata, planner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata

from ascend_quant.export.errors import ExportError

CLASSES = {
    metadata: (
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "BytesStorageMetadata"),
        *("ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING"),
    ),
    planner: ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData"),  # Megatron keeps plans
    filesystem: ("_StorageInfo",),
    torch: ("Size",),
    torch.serialization: ("_get_layout",),
}
LARGEST = 1 << 50  # elements of a tensor
KNOWN = {
    (module.__name__, name): getattr(module, name)
    for module, names in CLASSES.items()
    for name in names
    if hasattr(module, name)
}
KNOWN |= {("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
PATHS = ("Path", "PosixPath", "PurePosixPath")


class _NotKnown(Exception):
    """A pickle names what no `.metadata` has."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """One of the classes, or an error: pickle calls this for all that it looks up."""
        if module.partition(".")[0] == "pathlib" and name in PATHS:
            return PurePosixPath
        if (module, name) not in KNOWN:
            raise _NotKnown(f"{module}.{name}")
        return KNOWN[module, name]


def read_metadata(path: Path) -> Metadata:
    """What a checkpoint holds and where.

    Raises:
        ExportError: it cannot be read, names other classes, or says what cannot be: sizes that are none, files outside
            of the folder.
    """
    try:
        with path.open("rb") as file:
            found = _Unpickler(file).load()
    except _NotKnown as error:
        raise ExportError(
            f"{path} is a pickle that names {str(error)!r:.120}, which no checkpoint needs; nothing of it has been run"
        ) from error
    except Exception as error:  # a pickle that is cut off raises anything
        raise ExportError(f"{path} cannot be read ({error!r:.200}); copy the checkpoint again") from error
    try:
        _check(found)
    except (AttributeError, TypeError, ValueError) as error:
        raise ExportError(f"{path} does not describe a checkpoint: {error}") from error
    return found


def _check(found: Any) -> None:
    """Raise ValueError, AttributeError or TypeError if it is not as torch writes it."""
    if not isinstance(found, Metadata):
        raise ValueError(f"it holds a {type(found).__name__}")
    for key, one in found.state_dict_metadata.items():
        if not isinstance(key, str) or not isinstance(one, TensorStorageMetadata | BytesStorageMetadata):
            raise ValueError(f"{key!r:.80} is a {type(one).__name__}")
        if isinstance(one, TensorStorageMetadata):
            sizes = [one.size, *(size for chunk in one.chunks for size in (chunk.offsets, chunk.sizes))]
            if not all(isinstance(size, torch.Size) and min(size, default=0) >= 0 for size in sizes):
                raise ValueError(f"{key!r:.80} has a size that is none: {one.size!r:.80}")
            if max(map(math.prod, sizes)) > LARGEST:
                raise ValueError(f"{key!r:.80} is larger than any tensor: {one.size!r:.80}")
            if not isinstance(one.properties.dtype, torch.dtype) or {len(size) for size in sizes} != {len(one.size)}:
                raise ValueError(f"{key!r:.80} is of dtype {one.properties.dtype!r:.40}, in pieces of other dimensions")
    for index, info in found.storage_data.items():
        inside = PurePath(info.relative_path)
        if not isinstance(index, MetadataIndex) or inside.is_absolute() or ".." in inside.parts:
            raise ValueError(f"a piece lies in {info.relative_path!r:.120}, outside of the checkpoint's folder")
        if type(info.offset) is not int or type(info.length) is not int or min(info.offset, info.length) < 0:
            raise ValueError(f"a piece lies at {info.offset!r:.40} in {info.relative_path!r:.80}")
