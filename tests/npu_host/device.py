"""npu:0 on host memory: torch_npu's tensors, with every operator's arithmetic done by the CPU's kernels.

Each aten operator that torch_npu has a kernel for is replaced by: take CPU tensors over the same memory, run the CPU
kernel, copy what is new to npu:0. What only makes or reshapes tensors, and streams and events, stays torch_npu's own.
An operator that torch_npu has no kernel for, and an NPU operator without a reference here, fails with its name.
"""

import torch
import torch_npu  # noqa: F401  registers the kernels that are replaced here
from torch.utils._pytree import tree_map

from npu_host import formats, memory, reference
from npu_host import ops as _ops  # noqa: F401  registers the references

KEY = "PrivateUse1"  # the dispatch key behind the name "npu"
MANAGES_MEMORY = {
    *("resize_", "resize_as_", "record_stream", "is_pinned", "_pin_memory", "is_set_to"),
    *("set_", "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor"),
}
NPU_OWN = {"npu::get_npu_format", "npu::unsafe_empty_with_format", "npu::get_storage_size"}
COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_libraries: list[torch.library.Library] = []


class NoKernel(NotImplementedError):
    """An operator that npu:0 on host memory cannot run."""


def install() -> None:
    """Once a process: puts the kernels in place and makes npu:0 the current device."""
    if _libraries:
        return
    by_hand = {"copy_": _copy_, "clone": _clone, "_to_copy": _to_copy, "contiguous": _contiguous}
    aten, npu = (torch.library.Library(name, "IMPL", KEY) for name in ("aten", "npu"))
    _libraries.extend((aten, npu))
    for name in torch._C._dispatch_get_all_op_names():
        library, _, short = name.partition("::")
        if library == "aten":
            kernel = by_hand.get(short) or _aten_kernel(name)
            if kernel is not None:
                aten.impl(short, kernel, allow_override=True)
        elif library == "npu" and _has_kernel(name) and name not in NPU_OWN and name not in reference.REFERENCES:
            npu.impl(short, _refuse(name, "it has no reference kernel in tests/npu_host/ops"), allow_override=True)
    reference.install(KEY, _libraries)
    torch.npu.set_device(0)


def _has_kernel(name: str, key: str = KEY) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def _aten_kernel(name: str):
    """What runs for an aten operator on npu:0; None where torch's or torch_npu's own kernel is right as it is."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    if operator is None:
        return None
    if not _has_kernel(name):
        # torch_npu would move the arguments to the CPU and back, with a warning: too slow to pass unseen.
        composite = any(_has_kernel(name, key) for key in COMPOSITE)
        return None if composite else _refuse(name, "torch_npu has no kernel for it")
    if operator.is_view or packet.startswith(("empty", "new_empty")) or name.removeprefix("aten::") in MANAGES_MEMORY:
        return None
    return _on_cpu(operator)


def _refuse(name: str, reason: str):
    def refuse(*args, **kwargs):
        raise NoKernel(f"{name} cannot run on npu:0 on host memory: {reason}")

    return refuse


def _on_cpu(operator):
    """The operator's CPU kernel, over the memory of NPU tensors."""

    def kernel(*args, **kwargs):
        originals = {}

        def to_host(value):
            if isinstance(value, torch.Tensor) and value.device.type == "npu":
                formats.require_rows(value, operator.name())
                host = memory.alias(value)
                originals[id(host)] = host, value
                return host
            return torch.device("cpu") if isinstance(value, torch.device) and value.type == "npu" else value

        def to_npu(value):
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in originals:
                return memory.to_device(value)
            host, original = originals[id(value)]
            if (host.shape, host.stride()) != (original.shape, original.stride()):
                raise NoKernel(f"{operator.name()} reshapes a tensor in place: not modelled on host memory")
            return original

        return tree_map(to_npu, operator(*tree_map(to_host, args), **tree_map(to_host, kwargs)))

    return kernel


def _copy_(self, source, non_blocking=False):
    on_npu = [tensor for tensor in (self, source) if tensor.device.type == "npu"]
    if all(formats.format_of(tensor) == formats.ND for tensor in on_npu):
        to, of = (memory.alias(tensor) if tensor.device.type == "npu" else tensor for tensor in (self, source))
        to.copy_(of)
    elif self.device.type == "cpu":
        self.copy_(formats.read(source))
    else:
        _copy_blocks(self, source)
    return self


def _copy_blocks(self: torch.Tensor, source: torch.Tensor) -> None:
    """copy_ where one side is NZ: a plain memory copy between equals, as torch_npu does; else an error."""
    described = [
        f"{formats.NAMES[formats.format_of(tensor)]} {tensor.dtype} {tuple(tensor.shape)} on {tensor.device.type}"
        for tensor in (self, source)
    ]
    if described[0] != described[1]:
        raise formats.FormatError(
            f"copy_ from {described[1]} into {described[0]}: on an NPU this converts through hidden ND temporaries; "
            "cast the source with torch_npu.npu_format_cast first, so that both have one format, dtype and shape"
        )
    for tensor in (self, source):
        formats.require_whole(tensor, "copy_")
    memory.storage(self).copy_(memory.storage(source))


_clone_rows = _on_cpu(torch.ops.aten.clone.default)


def _clone(self, *, memory_format=None):
    if formats.format_of(self) != formats.NZ:
        return _clone_rows(self, memory_format=memory_format)
    formats.require_whole(self, "clone")
    return formats.empty(self, formats.NZ).copy_(self)


def _contiguous(self, memory_format=torch.contiguous_format):
    return self if self.is_contiguous(memory_format=memory_format) else self.clone(memory_format=memory_format)


def _to_copy(self, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False, memory_format=None):
    dense = torch.empty_like(self, device="meta", memory_format=memory_format or torch.preserve_format).stride()
    target = torch.empty_strided(
        self.shape, dense, dtype=dtype or self.dtype, device=device or self.device, pin_memory=pin_memory or False
    )
    return target.copy_(self, non_blocking)
