"""Digests of named tensors, taken whole or in parts, and the comparison of the trainer's with the engine's.

A digest covers a parameter's bits in transit and their position (`oracle.digest` says what it cannot detect), so it
does not depend on order, buckets or ranks; dtype and shape are compared separately. The device is synchronized only
when the digests are read, once per sync.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from ascend_quant.kernels import kernels_for
from ascend_quant.oracle import add_digests
from ascend_quant.transfer.errors import RefitError
from ascend_quant.transfer.validate import NamedTensor

SHOWN = 8  # parameters that one message lists


class Digest(NamedTuple):
    """The checksum of a tensor, with its size, dtype and shape.

    Attributes:
        number: `oracle.digest`, in [0, PRIME).
        elements: number of elements covered, which is less than the shape's while parts are missing.
        dtype: name such as "torch.bfloat16".
        shape: shape of the whole tensor.
    """

    number: int
    elements: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> str:
        """The dtype and shape, for messages."""
        return f"{self.dtype.removeprefix('torch.')} {list(self.shape)}"


class Digests:
    """Checksums of named tensors, which may be added in parts."""

    def __init__(self) -> None:
        self._known: dict[str, Digest] = {}
        self._unread: dict[torch.device, tuple[list[str], list[object]]] = {}

    def add(
        self,
        name: str,
        tensor: torch.Tensor,
        first_row: int = 0,
        first_column: int = 0,
        shape: Sequence[int] | None = None,
    ) -> None:
        """Add a tensor or a part of one, asynchronously, like a kernel that reads `tensor`.

        Args:
            tensor: any shape and dtype; a part must be consecutive rows of the whole (a row: its last dimension).
            first_row, first_column: position of the part in the whole tensor.
            shape: shape of the whole tensor, if this is a part.

        Raises:
            RefitError: another part had a different dtype or shape.
        """
        self._launch([name], [tensor], [tensor.shape if shape is None else shape], [first_row], [first_column])

    def add_all(self, weights: Iterable[NamedTensor]) -> None:
        """Add whole tensors, with as few launches as the device allows."""
        groups: dict[torch.device, list[NamedTensor]] = {}
        for name, tensor in weights:
            groups.setdefault(tensor.device, []).append((name, tensor))
        for group in groups.values():
            names, tensors = zip(*group, strict=True)
            self._launch(names, tensors, [tensor.shape for tensor in tensors])

    def merge(self, others: Mapping[str, Digest]) -> None:
        """Merge the `as_dict()` of other `Digests`, such as those of ranks with the other parts."""
        for name, other in others.items():
            self._count(name, other)

    def clear(self) -> None:
        """Reset for another sync."""
        self._known.clear()
        self._unread.clear()

    def as_dict(self) -> dict[str, Digest]:
        """Return each tensor's digest; waits for the device."""
        for device, (names, found) in self._unread.items():
            for name, number in zip(names, kernels_for(device).read_digests(found), strict=True):
                known = self._known[name]
                self._known[name] = known._replace(number=add_digests(known.number, number))
        self._unread.clear()
        return dict(self._known)

    def _launch(
        self,
        names: Sequence[str],
        tensors: Sequence[torch.Tensor],
        shapes: Sequence[Sequence[int]],
        *firsts: Sequence[int],
    ) -> None:
        for name, tensor, shape in zip(names, tensors, shapes, strict=True):
            self._count(name, Digest(0, tensor.numel(), str(tensor.dtype), tuple(shape)))
        device = tensors[0].device
        known, found = self._unread.setdefault(device, ([], []))
        held = [tensor.resolve_neg().resolve_conj() for tensor in tensors]  # materializes lazy bits
        found.append(kernels_for(device).digests(held, *firsts))
        known.extend(names)

    def _count(self, name: str, part: Digest) -> None:
        known = self._known.setdefault(name, part)
        if known is part:  # the common case: whole tensors, of which MoE models have tens of thousands
            return
        if part.kind != known.kind:
            raise RefitError(
                f"{name} was received as {known.kind} and as {part.kind}: send each tensor once, with one dtype"
            )
        number, elements = add_digests(known.number, part.number), known.elements + part.elements
        self._known[name] = known._replace(number=number, elements=elements)


def prepare(device: torch.device) -> None:
    """Compile the kernels for digests on `device`."""
    kernels_for(device).prepare(device)


def compare(sent: Mapping[str, Digest], received: Mapping[str, Digest]) -> None:
    """Raise RefitError unless both sides name the same parameters, with the same dtypes, shapes and bits."""
    faults = [f"{name} is missing" for name in sent if name not in received]
    for name, here in received.items():
        there = sent.get(name)
        if there is None:
            faults.append(f"{name} was never sent")
        elif here[2:] != there[2:]:  # dtype and shape
            faults.append(f"{name} is {here.kind}, but {there.kind} was sent")
        elif here.elements != there.elements:
            faults.append(f"{name} has {here.elements} elements, but {there.elements} were sent")
        elif here.number != there.number:
            faults.append(f"{name} has values that differ from those sent")
    if faults:
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        count = f"{len(faults)} of {len(sent.keys() | received.keys())}"
        raise RefitError(
            f"{count} parameters did not arrive as the trainer sent them: {'; '.join(faults[:SHOWN])}{more}. "
            "Sync again; if it happens again, look for code that writes to the weights in transit, or for "
            "faulty memory"
        )
