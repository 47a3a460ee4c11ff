"""What an NPU would be asked for, counted on tensors without memory: operators, views, bytes, copies, waits, AICPU.

    with Counted() as counted:
        ...                       # work on meta tensors, which stand for the device's
    counted.total.ops

A dispatch mode sees each operator with its tensors. What it does not see is time, and what CANN launches inside one
call: bytes that the sources tell of are added apart, as `hidden`, and operators that run on the AICPU by a table.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

INT8, UINT8, INT16, INT64 = torch.int8, torch.uint8, torch.int16, torch.int64
BOOL, F64 = torch.bool, torch.float64
# What Atlas A2 and A3 leave to the AICPU, by the lists of dtypes in the sources of CANN's ops-nn 8.5.0 and 9.1.0 and
# ops-math 9.1.0; no dtypes are all
AICPU = (
    (("index_add",), (INT64, INT8, UINT8, BOOL, F64)),  # ops-nn index/inplace_scatter_add aclnn_index_add.cpp
    (("index",), (INT16, F64)),  # ops-nn index/index aclnn_index.cpp
    (("amax", "amin"), (INT16, BOOL)),  # ops-math math/reduce_max
    (("add", "mul", "sub", "lt", "ne"), (INT16, F64)),  # ops-math math, the operators' AICORE dtypes
    (("bitwise_and", "bitwise_or", "bitwise_xor"), (INT8, UINT8)),  # ops-math math/bitwise_xor
    (("bitwise_left_shift", "bitwise_right_shift"), ()),  # ops-math: no AICORE kernel
)
WRITES_ALONE = {"copy_", "fill_", "zero_"}  # in place, without reading what was there
READS_BACK = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "unique_consecutive"}
DEVICES = {"meta", "npu"}
LARGE = 1 << 20  # bytes of a tensor that is work space


@dataclass
class Cost:
    """Of some calls.

    Attributes:
        views: calls that make a view: nothing is launched.
        bytes, hidden: read and written, as operands and inside.
        h2d, d2h: copies between host and device.
        waits: times that the host waits for the device: a copy from pageable memory drains the stream, as does a read.
        aicpu: calls by operator and dtype.
    """

    ops: int = 0
    views: int = 0
    bytes: int = 0
    hidden: int = 0
    h2d: int = 0
    d2h: int = 0
    waits: int = 0
    aicpu: Counter = field(default_factory=Counter)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(getattr(self, name) + getattr(other, name) for name in vars(self)))


class Counted(TorchDispatchMode):
    """Counts while it is active.

    Attributes:
        total: of all calls.
        peak: most bytes of large tensors, made since it began, that were there at one time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = Cost()
        self.peak = 0
        self._large: list[tuple[StorageWeakRef, int]] = []
        self._small: list[tuple[StorageWeakRef, int]] = []

    @property
    def left(self) -> int:
        """Bytes of the tensors made since it began that are still there."""
        return sum(size for storage, size in (*self._large, *self._small) if not storage.expired())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if func.is_view:
            self.total.views += 1
            return func(*args, **kwargs)
        tensors = [value for value in tree_iter((args, kwargs)) if isinstance(value, torch.Tensor)]
        target = kwargs.get("device", tensors[0].device if tensors else "cpu")
        devices = {tensor.device.type for tensor in tensors} | {torch.device(target or "cpu").type}
        if name in READS_BACK and devices & DEVICES:
            raise AssertionError(f"{name} reads the device in the middle of a refit")
        if name in ("_to_copy", "copy_") and len(devices) == 2:
            return _carry(self.total, func, args, kwargs)
        result = func(*args, **kwargs)
        if devices & DEVICES:
            self.total.ops += 1
            self.total.aicpu.update(_on_aicpu(name, tensors))
            self._watch(_add_bytes(self.total, name, func, args, kwargs, tensors, result))
        return result

    def _watch(self, made: list[torch.Tensor]) -> None:
        for storage in (tensor.untyped_storage() for tensor in made):
            size = storage.nbytes()
            if size < LARGE:
                self._small.append((StorageWeakRef(storage), size))
                continue
            self._large = [(one, held) for one, held in self._large if not one.expired()]
            self._large.append((StorageWeakRef(storage), size))
            self.peak = max(self.peak, sum(held for _, held in self._large))


def _carry(total: Cost, func, args, kwargs) -> torch.Tensor:
    """A copy between the host and the device, where there is nothing to be copied."""
    to, source = (args[0], args[1]) if len(args) > 1 else (torch.device(kwargs["device"]), args[0])
    onto_device = (to.device if isinstance(to, torch.Tensor) else to).type in DEVICES
    host = source if onto_device else to
    waits_not = (
        isinstance(host, torch.Tensor) and host.is_pinned() and (kwargs.get("non_blocking") or args[2:] == (True,))
    )
    total.ops += 1
    total.bytes += source.nbytes
    total.waits += not waits_not
    total.h2d += onto_device
    total.d2h += not onto_device
    if onto_device or source.device.type != "meta":
        return func(*args, **kwargs)
    return to if isinstance(to, torch.Tensor) else torch.zeros(source.shape, dtype=source.dtype, device="cpu")


def _add_bytes(total: Cost, name: str, func, args, kwargs, tensors: list[torch.Tensor], result) -> list[torch.Tensor]:
    """Add what a call reads and writes; returns the tensors that it made."""
    written = {id(value) for value in _written(func, args, kwargs)}
    new = [value for value in tree_iter(result) if isinstance(value, torch.Tensor) and id(value) not in written]
    read = [value for value in tensors if id(value) not in written or name not in WRITES_ALONE]
    if name == "index_select":  # of the table only what is taken
        read = [*tensors[1:], *new]
    if not name.startswith(("empty", "new_empty")):
        total.bytes += sum(value.nbytes for value in new)
    total.bytes += sum(value.nbytes for value in read)
    total.bytes += sum(value.nbytes for value in tensors if id(value) in written)
    if name == "sum" and tensors[0].dtype == BOOL:  # cast to float32 first: ops-math math/reduce_sum
        total.hidden += 8 * tensors[0].numel()
    # what does not lie dense is copied first: ops-math conversion/view_copy aclnn_copy.cpp, every operator's entry
    if name != "clone":  # which is that copy
        total.hidden += sum(2 * value.nbytes for value in read if not value.is_contiguous())
    return new


def _written(func, args, kwargs) -> Iterator[torch.Tensor]:
    for number, argument in enumerate(func._schema.arguments):
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write and value is not None:
            yield value


def _on_aicpu(name: str, tensors: list[torch.Tensor]) -> Iterator[str]:
    dtypes = {tensor.dtype for tensor in tensors[:1]}
    for names, slow in AICPU:
        if name.removesuffix("_") in names and (not slow or dtypes & set(slow)):
            yield f"{name} {str(tensors[0].dtype).removeprefix('torch.')}"
