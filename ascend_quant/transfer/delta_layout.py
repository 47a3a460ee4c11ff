"""The byte layout of a group of tensors in a delta sync: packing into one uint8 buffer, views into it, validation.

Each tensor begins at a multiple of 16 bytes, so that its bytes can be viewed as any dtype. The layout travels as JSON.
"""

from collections.abc import Sequence
from math import prod

import torch

from ascend_quant.files.documents import is_array, parse_json
from ascend_quant.transfer.checksums import DTYPES
from ascend_quant.transfer.delta_base import Layout
from ascend_quant.transfer.errors import RefitError
from ascend_quant.transfer.validate import NamedTensor

ALIGNED = 16  # bytes: alignment of tensors in a group


def layout_of(group: Sequence[NamedTensor]) -> Layout:
    """Return name, dtype and shape of each tensor."""
    return [(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for name, tensor in group]


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def side_by_side(group: Sequence[NamedTensor]) -> torch.Tensor:
    """Pack the tensors' bytes into one uint8 buffer, each tensor at a multiple of ALIGNED."""
    size = sum(_aligned(tensor.nbytes) for _, tensor in group)
    found, begin = torch.zeros(size, dtype=torch.uint8, device=group[0][1].device), 0
    for _, tensor in group:
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        found[begin : begin + tensor.nbytes] = plain.view(-1).view(torch.uint8)
        begin += _aligned(tensor.nbytes)
    return found


def views_of(layout: Layout, bytes_: torch.Tensor) -> list[NamedTensor]:
    """Return a group's tensors as views of its bytes."""
    found: list[NamedTensor] = []
    begin = 0
    for name, dtype, shape in layout:
        size = prod(shape) * getattr(torch, dtype).itemsize
        found.append((name, bytes_[begin : begin + size].view(getattr(torch, dtype)).view(shape)))
        begin += _aligned(size)
    return found


def read_layout(name: str, text: torch.Tensor) -> Layout:
    """Parse the layout of the blob `name` from JSON in a uint8 tensor; raise RefitError if it is invalid."""
    try:
        found = parse_json(text.cpu().numpy().tobytes().decode(), "the layout")
        if not is_array(found):
            raise ValueError("no list")
        layout: Layout = [(str(tensor), str(dtype), [*map(_size, shape)]) for tensor, dtype, shape in found]
        if unknown := [dtype for _, dtype, _ in layout if not _is_viewed(dtype)]:
            raise ValueError(f"no dtype {unknown[0][:40]!r}")
        return layout
    except (ValueError, TypeError) as error:
        raise RefitError(f"{name}: its layout cannot be read ({error})") from None


def _size(found: object) -> int:
    if type(found) is not int or found < 0:
        raise ValueError(f"the size {str(found)[:40]!r}")
    return found


def _is_viewed(dtype: str) -> bool:
    """Return whether bytes can be viewed as this dtype (not as quantized or sub-byte dtypes)."""
    if f"torch.{dtype}" not in DTYPES:
        return False
    try:
        torch.empty(0, dtype=torch.uint8).view(getattr(torch, dtype))
    except (RuntimeError, NotImplementedError):
        return False
    return True


def checked_bytes(name: str, bytes_: torch.Tensor, size: int, layout: Layout) -> torch.Tensor:
    """Return `bytes_`; raise RefitError unless their number is `size`, and is the one that the layout needs."""
    wanted = sum(_aligned(prod(shape) * getattr(torch, dtype).itemsize) for _, dtype, shape in layout)
    if not bytes_.numel() == size == wanted:
        raise RefitError(f"{name}: {bytes_.numel()} bytes were received of {size}, but its layout needs {wanted}")
    return bytes_
