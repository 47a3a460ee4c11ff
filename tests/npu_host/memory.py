"""A tensor on "npu:0" and a CPU tensor over the same bytes: the device's memory is host memory."""

import ctypes

import torch


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of an NPU tensor, element for element. It does not keep that memory alive."""
    flat = storage(tensor)
    usable = flat.numel() // tensor.element_size() * tensor.element_size()
    return flat[:usable].view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def storage(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of an NPU tensor's storage, as a CPU tensor over the same memory."""
    held = tensor.untyped_storage()
    if held.nbytes() == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * held.nbytes()).from_address(held.data_ptr()), dtype=torch.uint8)


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a CPU tensor on npu:0, with its strides where they are dense."""
    dense = torch.empty_like(tensor, device="meta").stride()  # what a kernel on the NPU would return
    copy = torch.empty_strided(tensor.shape, dense, dtype=tensor.dtype, device="npu")
    alias(copy).copy_(tensor)
    return copy
