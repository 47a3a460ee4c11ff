"""A safetensors file whose tensors are written in any order, a few rows at a time: the header comes first.

The format: https://huggingface.co/docs/safetensors - 8 bytes of header length, a JSON header, the tensors without gaps.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from ascend_quant.convert.formats import Spec
from ascend_quant.profile.checkpoints import BadCheckpoint

BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}


def size(spec: Spec) -> int:
    """Return the size of a tensor in bytes.

    Raises:
        BadCheckpoint: elements of the dtype are not whole bytes.
    """
    if spec.dtype not in BYTES:
        raise BadCheckpoint(f"a tensor of dtype {spec.dtype} cannot be copied; supported dtypes: {', '.join(BYTES)}")
    return math.prod(spec.shape) * BYTES[spec.dtype]


class Layout:
    """The offsets of tensors in a safetensors file; wide elements come first, so that all tensors are aligned."""

    def __init__(self, specs: Mapping[str, Spec]):
        sizes = {name: size(spec) for name, spec in specs.items()}
        header, end, self.starts = {"__metadata__": {"format": "pt"}}, 0, {}
        for name in sorted(specs, key=lambda name: -BYTES[specs[name].dtype]):
            dtype, shape = specs[name]
            self.starts[name], end = end, end + sizes[name]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [self.starts[name], end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.header = len(text).to_bytes(8, "little") + text
        self.bytes = len(self.header) + end

    def fits(self, path: Path) -> bool:
        """Return whether a file has this header and this size."""
        if not path.is_file() or path.stat().st_size != self.bytes:
            return False
        with path.open("rb") as file:
            return file.read(len(self.header)) == self.header


class ShardFile:
    """A file that is being written."""

    def __init__(self, path: Path, specs: Mapping[str, Spec]):
        self.specs, self.layout = specs, Layout(specs)
        self._file = path.open("w+b", buffering=0)
        os.ftruncate(self._file.fileno(), self.layout.bytes)
        self._put(0, memoryview(self.layout.header))

    def write(self, name: str, first_row: int, rows: torch.Tensor) -> None:
        """Write rows of a tensor, from `first_row` on; a scalar is one row.

        Raises:
            ValueError: the size of an element differs from the header's.
        """
        spec = self.specs[name]
        if rows.element_size() != BYTES[spec.dtype]:
            raise ValueError(f"{name} is {spec.dtype} in the header, but the data is {rows.dtype}")
        row = size(spec) // spec.shape[0] if spec.shape and spec.shape[0] else size(spec)
        content = memoryview(rows.contiguous().reshape(-1).view(torch.uint8).numpy())
        self._put(len(self.layout.header) + self.layout.starts[name] + first_row * row, content)

    def _put(self, at: int, content: memoryview) -> None:
        while len(content):
            written = os.pwrite(self._file.fileno(), content, at)
            at, content = at + written, content[written:]

    def finish(self) -> None:
        """Flush the file to disk."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> "ShardFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
