"""Validation of each tensor of a weight update, and its conversion for kernels; resident.py checks dtype and shape."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ascend_quant.schemes.tensors import FLOATS
from ascend_quant.transfer.errors import RefitError

NamedTensor = tuple[str, torch.Tensor]

READ_AS_SENT = tuple(dtype for dtype in FLOATS if dtype != torch.float64)  # dtypes that kernels read directly


def pairs(weights: Any) -> Iterable[NamedTensor]:
    """Return the weights after checking that they are pairs; `check_sent` checks their contents.

    Raises:
        RefitError: the weights are not pairs.
    """
    kind = weights.__class__
    if issubclass(kind, (list, tuple)):
        return [_pair(one) for one in weights]
    if issubclass(kind, (Mapping, torch.Tensor)) or not issubclass(kind, Iterable):
        raise RefitError(f"got a {kind.__name__}; send (name, tensor) pairs, such as dict.items()")
    return map(_pair, weights)


def _pair(one: Any) -> NamedTensor:
    kind = one.__class__
    if not issubclass(kind, (tuple, list)) or len(one) != 2:
        what = f"{kind.__name__} of {len(one)}" if issubclass(kind, (tuple, list)) else kind.__name__
        raise RefitError(f"got a {what} among the weights; send (name, tensor) pairs")
    return one


def check_sent(name: object, tensor: object) -> None:
    """Check that this is a named tensor whose values are in memory.

    Raises:
        RefitError: it is not; the message names it.
    """
    if not isinstance(name, str):
        raise RefitError(f"a tensor's name is {name!r}, not a string; send (name, tensor) pairs")
    if not isinstance(tensor, torch.Tensor):
        raise RefitError(f"{name}: got {type(tensor).__name__}; send a torch.Tensor")
    if is_traceable_wrapper_subclass(tensor):
        raise RefitError(
            f"{name}: got {type(tensor).__name__}, a tensor subclass that wraps other tensors; send the full "
            "plain tensor"
        )
    if tensor.is_nested or tensor.is_quantized:
        raise RefitError(f"{name}: got a {'nested' if tensor.is_nested else 'quantized'} tensor; send a plain one")
    if tensor.layout != torch.strided or tensor.is_meta or is_freed(tensor):
        where = "on the meta device" if tensor.is_meta else f"of layout {tensor.layout}"
        where = "whose memory has been freed" if is_freed(tensor) else where
        raise RefitError(f"{name}: got a tensor {where}, which has no values in memory; send a dense one")


def is_freed(tensor: torch.Tensor) -> bool:
    """Return whether the storage is smaller than the tensor, as when FSDP frees a layer: kernels would read past it."""
    if tensor.layout != torch.strided or not (count := tensor.numel()):
        return False
    if not tensor.is_contiguous():  # cheaper than strides, and called for every tensor of a sync
        count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.untyped_storage().nbytes() < (tensor.storage_offset() + count) * tensor.element_size()


def checked(weights: Iterable[NamedTensor]) -> Iterable[NamedTensor]:
    """Return the weights, each checked by `check_sent`: a list for a list, otherwise a generator."""
    return list(_checked(weights)) if isinstance(weights, (list, tuple)) else _checked(weights)


def _checked(weights: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
    for name, tensor in weights:
        check_sent(name, tensor)
        yield name, tensor


def lies_as_read(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's memory has its values in order, from the first to the last byte."""
    return tensor.is_contiguous() and not tensor.is_neg()


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the raw memory of the contiguous tensor equals its values (no conjugate or negative bit)."""
    return lies_as_read(tensor) and tensor.dtype in READ_AS_SENT


def made_plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if loaders and kernels accept it, else a copy (float64, overlapping or gaps)."""
    if tensor.dtype == torch.float64:
        tensor = tensor.to(torch.float32)  # torch rounds float64 to BF16 through float32, too
    return tensor.resolve_neg() if is_dense(tensor) else tensor.contiguous()


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is dense and non-overlapping, in any order; otherwise rows cannot be located."""
    filled = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != filled:
                return False
            filled *= size
    return True


def sent_twice(name: str) -> RefitError:
    return RefitError(f"{name}: sent twice in one refit; send every tensor once")
