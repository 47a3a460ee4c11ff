"""A refit plan: the resident rows of each trainer tensor, recorded during one refit through the loaders.

An engine's loaders take tens of microseconds of Python per tensor. A tensor of the same name and shape is always
written to the same rows, so later refits look up its writes by name. Tensors for which this does not hold (a loader
that rearranges the tensor, padding) still use the loader.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch._C._dynamo.guards import TensorGuards

from ascend_quant.kernels.writes import CopyWrite, RowWrite, WriteBatch
from ascend_quant.refit.resident import ResidentWeight
from ascend_quant.transfer.prequantized import parted
from ascend_quant.transfer.validate import NamedTensor, check_sent, is_plain, lies_as_read, sent_twice

# Sizes of the groups in which the tensors of a long list are placed: few at first, so that the device starts early;
# fewer again at the end, so that the device has little left to do when the host is done.
FEWEST, MOST, LAST = 256, 4096, 256
WAYS = 4  # different calls that are cached


def together(weights: Iterable[NamedTensor]) -> Iterator[Sequence[NamedTensor]]:
    """Yield groups of tensors that do not change until the whole group is written; a generator may reuse its buffer."""
    if isinstance(weights, (list, tuple)):
        start, size = 0, FEWEST
        while (left := len(weights) - start) > 0:
            size = min(size, max(left // 2, LAST))
            count = size if left >= 2 * size else left
            yield weights[start : start + count]
            start, size = start + count, min(4 * size, MOST)
    else:
        for pair in weights:
            yield [pair]


@dataclass(eq=False)
class Entry:
    """The writes of one tensor of the trainer to resident weights.

    Attributes:
        shape: shape of the tensor.
        writes: parts of the contiguous tensor, with their destinations; empty for a tensor that this rank does not use.
        by_loader: whether the writes are incomplete, so that the loader must be called every time.
        skipped: whether the engine's own loader skips the tensor by design.
        prequantized: whether the tensor is pre-quantized, with its scales.
    """

    shape: torch.Size
    writes: list[tuple[ResidentWeight, RowWrite]] = field(default_factory=list)
    by_loader: bool = False
    skipped: bool = False
    prequantized: bool = False

    @property
    def is_idle(self) -> bool:
        """True if this rank does not use the tensor."""
        return not self.writes and not self.by_loader

    def add(self, resident: ResidentWeight, write: RowWrite) -> None:
        """Add a write, merged with the last one if contiguous, so that stacked experts become one write."""
        if self.writes and self.writes[-1][0] is resident and self.writes[-1][1].followed_by(write):
            write = self.writes.pop()[1].joined(write)
        self.writes.append((resident, write))

    def is_matched_by(self, other: "Entry | None") -> bool:
        """Return whether another refit's entry of the same name wrote the same amount."""
        if other is None:
            return self.is_idle
        return sum(write.rows for _, write in other.writes) >= sum(write.rows for _, write in self.writes)

    def fits(self, tensor: torch.Tensor) -> bool:
        """Return whether the writes are valid for this tensor; if not, the loader handles or rejects it."""
        as_learnt = lies_as_read(tensor) if self.prequantized else is_plain(tensor)
        taken = all(resident.takes(tensor.dtype, self.prequantized) for resident, _ in self.writes)
        return not self.by_loader and tensor.shape == self.shape and as_learnt and taken


class Call:
    """The plan for the tensors of one call, which is looked up once per call, not once per tensor.

    Args:
        weights: the tensors, with unique names.
        entries: plan entries, at least for these names.

    Attributes:
        names: names of all tensors.
        taken: positions of the tensors that this rank uses; `sources` are their names and sizes.
        skipped: names of the tensors that the engine's own loader skips by design.
        rest: positions of the tensors that must go through the loader.
        entries: plan entries of all other tensors.
        writes: writes of the taken tensors; `rows` is the number of written rows of each resident.
        edges: blocks that are only partly covered, see `edges_of`.
        tensors, bytes: number and size of the written tensors.
    """

    def __init__(self, weights: Sequence[NamedTensor], entries: Mapping[str, Entry]):
        for name, tensor in weights:
            check_sent(name, tensor)
        self.names = tuple(name for name, _ in weights)
        self.entries = {name: entries[name] for name in self.names}
        self.taken = [i for i, name in enumerate(self.names) if not self.entries[name].is_idle]
        self.sources = [(self.names[i], weights[i][1].numel()) for i in self.taken]
        self.skipped = [name for name in self.names if self.entries[name].skipped]
        self.rest: list[int] = []
        self.rows: Counter[ResidentWeight] = Counter()
        self.edges: set[tuple[ResidentWeight, int]] = set()
        self.tensors = self.bytes = 0
        writes: list[RowWrite] = []
        source_index: list[int] = []
        for index, i in enumerate(self.taken):
            name, tensor = weights[i]
            if (entry := self.entries[name]).fits(tensor):
                writes += (write for _, write in entry.writes)
                source_index += [index] * len(entry.writes)
                self._count_rows(entry)
                self.tensors += 1
                self.bytes += tensor.nbytes
            else:
                self.rest.append(i)
                del self.entries[name]
        self.writes = WriteBatch(writes, source_index)
        taken = [weights[i][1] for i in self.taken]
        self._facts = [facts_of(tensor) for tensor in taken]
        # torch.compile's guards compare all tensors in one call, in a quarter of the time; false negatives are possible
        self._guards = TensorGuards(*taken, dynamic_dims_sizes=None, dynamic_dims_strides=None)

    def _count_rows(self, entry: Entry) -> None:
        for resident, write in entry.writes:
            self.rows[resident] += write.rows
            self.edges |= edges_of(resident, [write])

    def addresses(self, weights: Sequence[NamedTensor]) -> list[int] | None:
        """Return the addresses of the taken tensors; None if names or properties differ from this call's."""
        names, tensors = zip(*weights, strict=True)
        if names != self.names:
            return None
        taken = [tensors[i] for i in self.taken]
        if not self._guards.check(*taken):
            for name, tensor in weights:
                check_sent(name, tensor)
            if [facts_of(tensor) for tensor in taken] != self._facts:
                return None
        return self._addresses_of(weights, taken)

    def first_addresses(self, weights: Sequence[NamedTensor]) -> list[int]:
        """Return the addresses of the taken tensors among those for which this call was made."""
        return self._addresses_of(weights, [weights[i][1] for i in self.taken])

    def _addresses_of(self, weights: Sequence[NamedTensor], taken: Sequence[torch.Tensor]) -> list[int]:
        addresses = [tensor.data_ptr() for tensor in taken]
        if 0 in addresses:  # an empty tensor, or one whose memory was freed
            for name, tensor in weights:
                check_sent(name, tensor)
        return addresses


def edges_of(resident: ResidentWeight, writes: Sequence[RowWrite]) -> set[tuple[ResidentWeight, int]]:
    """Return the blocks of a resident (by first row) that the writes cover only partly."""
    copies = (write for write in writes if isinstance(write, CopyWrite))
    return {(resident, write.edge_block) for write in copies if write.edge_block is not None}


def facts_of(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype, bool, bool]:
    """Return the properties of a tensor that its writes depend on; also for pre-quantized tensors."""
    return tensor.shape, tensor.dtype, tensor.is_cpu, lies_as_read(tensor)


class Plan:
    """The plan of a refit: the entry of each tensor of the last refit, by name.

    Args:
        entries: all entries; empty before the first recorded refit.
    """

    def __init__(self, entries: Mapping[str, Entry] | None = None):
        self.entries = entries or {}
        self._calls: dict[tuple[str, int], Call] = {}  # by the first name and the number of tensors; the oldest first
        self._kept = 0  # total number of tensors in the cached calls

    def call(self, weights: Sequence[NamedTensor]) -> tuple[Call, list[int]] | None:
        """Look up the plan of the tensors of one call, and the addresses of those that it writes.

        Returns:
            None if a tensor is unknown.

        Raises:
            RefitError: a tensor was sent twice.
        """
        key = weights[0][0], len(weights)
        known = self._calls.get(key)
        if known is not None and (addresses := known.addresses(weights)) is not None:
            return known, addresses
        names = Counter(name for name, _ in weights)
        if not names.keys() <= self.entries.keys():
            return None
        if len(names) < len(weights):
            raise sent_twice(names.most_common(1)[0][0])
        call = Call(weights, self.entries)
        self._keep(key, call)
        return call, call.first_addresses(weights)

    def takes_codes(self) -> tuple[list[str], list[str]]:
        """Return names of the last refit's tensors that may be sent pre-quantized, and of those that may not.

        A tensor for which this rank has no parameter is in neither; other ranks may know it.
        """
        found: tuple[list[str], list[str]] = ([], [])
        for name, entry in self.entries.items():
            if not entry.is_idle:
                may = not entry.by_loader and all(resident.takes_codes for resident, _ in entry.writes)
                found[not may].append(parted(name)[0])
        return found

    def _keep(self, key: tuple[str, int], call: Call) -> None:
        """Cache a call for the next refit; drop the oldest if a sender never repeats its calls."""
        if self._calls.pop(key, None) is None:
            self._kept += len(call.names)
        self._calls[key] = call
        while self._kept > WAYS * len(self.entries):
            self._kept -= len(self._calls.pop(next(iter(self._calls))).names)
