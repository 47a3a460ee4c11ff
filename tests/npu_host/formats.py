"""FRACTAL_NZ (29): matrices stored as blocks of 16 rows by 32 bytes. torch_npu's own storage descriptors say who is NZ.

The last two dimensions (K, N) are padded to whole blocks and stored as (N / C0, K / 16, 16, C0), with C0 = 32 for one
byte an element, else 16. The bytes here are laid out like that, so code that reads an NZ tensor as rows reads garbage,
as it would on the NPU.

Where the rule "an NZ tensor is used whole, and only by operators that know the format" comes from: torch_npu's
`npu_format_cast` works on the storage's base tensor, whatever view it is given; its `copy_` is a plain memory copy
only between tensors of one format, shape and stride, and otherwise converts through hidden ND temporaries (or, where
only aclnn operators exist, raises "do not support internal format"). None of this has been seen on hardware by this
project, so everything but cast to ND, .cpu(), clone and copy_ between equals is an error here.
"""

import math

import torch
import torch_npu

from npu_host import memory

ND, NZ = 2, 29
ROWS = 16
NAMES = {ND: "ND", NZ: "NZ"}


class FormatError(RuntimeError):
    """An NZ tensor was read or written in a way that is not known to work on an NPU."""


def format_of(tensor: torch.Tensor) -> int:
    """The format in torch_npu's storage descriptor; ND for tensors that are not on the NPU."""
    if tensor.device.type != "npu":
        return ND
    found = torch.ops.npu.get_npu_format(tensor)
    return NZ if found == NZ else ND  # its other base formats (NCHW, ..) are row-major as well


def casting_is_allowed() -> bool:
    """torch.npu.config.allow_internal_format; while it is off, torch_npu's casts to NZ silently return ND."""
    return torch_npu._C._npu_getOption("ALLOW_INTERNAL_FORMAT") == b"enable"


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether the tensor is its storage's base tensor and not a part or another view of it."""
    bytes_held = tensor.untyped_storage().nbytes()
    expected = _padded_bytes(tensor) if format_of(tensor) == NZ else tensor.numel() * tensor.element_size()
    return tensor.is_contiguous() and tensor.storage_offset() == 0 and bytes_held == expected


def require_rows(tensor: torch.Tensor, operation: str) -> None:
    """Raises FormatError for an NZ tensor in an operator that reads rows."""
    if format_of(tensor) == NZ:
        raise FormatError(
            f"{operation}: got a FRACTAL_NZ tensor {tuple(tensor.shape)}. On an NPU this is an error or a hidden "
            "conversion: cast it first, torch_npu.npu_format_cast(tensor, 2)"
        )


def require_whole(tensor: torch.Tensor, operation: str) -> None:
    """Raises FormatError for a view of an NZ tensor."""
    if format_of(tensor) == NZ and not is_whole(tensor):
        raise FormatError(
            f"{operation}: got a view {tuple(tensor.shape)}, strides {tensor.stride()}, of a FRACTAL_NZ tensor: "
            "NZ tensors are used whole; cast the whole tensor to ND and take the view of that"
        )


def describe(value) -> str:
    """A value in a word: `int8[64, 32] NZ` for a tensor."""
    if isinstance(value, torch.Tensor):
        mark = " NZ" if format_of(value) == NZ else "" if value.is_contiguous() else " strided"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{mark}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe(item) for item in value) + "]"
    return str(value).removeprefix("torch.")


def read(tensor: torch.Tensor) -> torch.Tensor:
    """The values of an NPU tensor as a CPU tensor: over the same memory if it is ND, a copy out of the blocks if NZ."""
    if format_of(tensor) != NZ:
        return memory.alias(tensor)
    require_whole(tensor, "read")
    outer, rows, columns, width = _blocks(tensor)
    blocks = memory.storage(tensor).view(tensor.dtype).view(outer, columns, rows, ROWS, width)
    padded = blocks.permute(0, 2, 3, 1, 4).reshape(outer, rows * ROWS, columns * width)
    return padded[:, : tensor.shape[-2], : tensor.shape[-1]].reshape(tensor.shape).clone()


def write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Stores the values of a CPU tensor in an NPU tensor of the same shape, in its format."""
    if format_of(tensor) != NZ:
        memory.alias(tensor).copy_(values)
        return
    require_whole(tensor, "write")
    outer, rows, columns, width = _blocks(tensor)
    padded = torch.zeros(outer, rows * ROWS, columns * width, dtype=tensor.dtype)
    padded[:, : tensor.shape[-2], : tensor.shape[-1]] = values.reshape(outer, *tensor.shape[-2:])
    blocks = padded.view(outer, rows, ROWS, columns, width).permute(0, 3, 1, 2, 4)
    memory.storage(tensor).view(tensor.dtype).view(blocks.shape).copy_(blocks)


def empty(like: torch.Tensor, acl_format: int) -> torch.Tensor:
    """An uninitialized NPU tensor with the shape and dtype of `like`, in a format: torch_npu's own allocation."""
    return torch_npu.empty_with_format(tuple(like.shape), dtype=like.dtype, device="npu", acl_format=acl_format)


def _blocks(tensor: torch.Tensor) -> tuple[int, int, int, int]:
    width = 32 if tensor.element_size() == 1 else 16
    return (
        math.prod(tensor.shape[:-2]),
        -(-tensor.shape[-2] // ROWS),
        -(-tensor.shape[-1] // width),
        width,
    )


def _padded_bytes(tensor: torch.Tensor) -> int:
    if tensor.dim() < 2:
        return -1
    outer, rows, columns, width = _blocks(tensor)
    return outer * rows * ROWS * columns * width * tensor.element_size()
