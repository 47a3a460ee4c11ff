"""How much of the trainer's update the engine's codes took: of a few rows of each kind of layer, at every refit.

At RL's learning rates a step moves most weights by far less than one code. Most codes then stay, a few jump by a whole
one, and the policy that samples may stand still, or walk with a noise of its own. With w the weights as the engine gets
them, in BF16, q what their codes stand for by the scheme's definition, and d a difference between two refits:

    share     <dq, dw> / <dw, dw>      1: on average the codes go as far as the weights, in their direction
    cosine    <dq, dw> / |dq| |dw|     1: and nowhere else
    changed   codes that differ, and
    expected  mean of min(1, |dw| / scale): as many would differ if every weight lay anywhere within its code

The rows are the same in every refit and on every rank, since they are chosen by name. Kept, in host memory and as they
were sent: those of the first refit, of the last one and of this one, for 7B 2 MB each.
"""

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from zlib import crc32

import torch

from ascend_quant.dtypes import FLOATS
from ascend_quant.kernels.host_copy import HostCopy
from ascend_quant.refit.plan import Entry
from ascend_quant.refit.sent import NamedTensor
from ascend_quant.schemes import Definition, Scheme, definition_of

NAMES, ROWS = 8, 4  # tensors of a kind, and neighbouring rows of each
WITHIN_ROWS = ("row", "group")  # what shares a scale, where rows can be quantized without the others

Rows = dict[str, torch.Tensor]  # by the tensor's name, (ROWS, K)


class Kept:
    """Rows on their way to host memory, in one copy a dtype, which nobody waits for until they are read."""

    def __init__(self, rows: Rows):
        self._shapes = {name: one.shape for name, one in rows.items()}
        self._copies: list[tuple[list[str], HostCopy]] = []
        for dtype in sorted({one.dtype for one in rows.values()}, key=str):
            alike = {name: one.ravel() for name, one in rows.items() if one.dtype == dtype}
            self._copies.append(([*alike], HostCopy(torch.cat([*alike.values()]))))

    @cached_property
    def rows(self) -> Rows:
        """In host memory."""
        found: Rows = {}
        for names, copy in self._copies:
            parts = copy.read().split([self._shapes[name].numel() for name in names])
            found |= {name: part.view(self._shapes[name]) for name, part in zip(names, parts, strict=True)}
        return found


@dataclass
class Sums:
    """Of two refits, added up over tensors."""

    dq_dw: float = 0.0
    dw_dw: float = 0.0
    dq_dq: float = 0.0
    changed: float = 0.0
    expected: float = 0.0
    elements: int = 0

    def add(self, other: "Sums") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def as_metrics(self) -> dict[str, float]:
        """Nothing where no weight moved."""
        if not self.dw_dw:
            return {}
        length = (self.dq_dq * self.dw_dw) ** 0.5
        return {"share": self.dq_dw / self.dw_dw, "cosine": self.dq_dw / length if length else 0.0}

    def codes(self) -> dict[str, float]:
        """Of codes that are whole numbers."""
        return {"changed": self.changed / self.elements, "expected": self.expected / self.elements}


@dataclass(frozen=True)
class Update:
    """The rows of one refit beside those of the last one before it, and of the first."""

    scheme: Scheme
    first: Kept = field(repr=False)
    last: Kept = field(repr=False)
    now: Kept = field(repr=False)

    @cached_property
    def figures(self) -> dict[str, float]:
        """`update/*` since the last refit, in all and by kind; `since_start/*`. Some 20 ms of a CPU for 7B."""
        definition = definition_of(self.scheme)
        kinds = compared(definition, self.last.rows, self.now.rows)
        found = _named("update", total(kinds.values()), definition)
        for kind, sums in kinds.items():
            found |= {f"update/{kind}/{name}": value for name, value in sums.as_metrics().items()}
        return found | _named(
            "since_start", total(compared(definition, self.first.rows, self.now.rows).values()), definition
        )


class Updates:
    """The sample of an engine's worker.

    Args:
        scheme: of its quantized layers; one whose rows have scales of their own.
    """

    def __init__(self, scheme: Scheme):
        self._scheme = scheme
        self._first: Kept | None = None
        self._names: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """A refit begins; what an unfinished one has brought is forgotten."""
        self._coming: Rows = {}
        self._chosen: dict[str, list[tuple[int, str]]] = {}

    def take(self, weights: Iterable[NamedTensor]) -> None:
        """Copy the rows of these tensors, which may be overwritten afterwards; nothing waits for the device."""
        for name, tensor in weights:
            if self._is_wanted(name, tensor):
                self._coming[name] = _some_rows(name, tensor).clone()

    def end(self, entries: Mapping[str, Entry]) -> Update | None:
        """The refit is complete: its rows, beside earlier ones'; None of the first."""
        rows, self._coming = self._coming, {}
        if self._first is None:
            quantized = {kind_of(name) for name in rows if _is_quantized(entries.get(name))}
            self._names = {name for name in rows if kind_of(name) in quantized}
            self._first = self._last = Kept({name: one for name, one in rows.items() if name in self._names})
            return None
        last, self._last = self._last, Kept(rows)
        return Update(self._scheme, self._first, last, self._last)

    def _is_wanted(self, name: str, tensor: torch.Tensor) -> bool:
        """In the first refit: whether the name is, so far, one of its kind's NAMES with the lowest checksums."""
        if self._first is not None:
            return name in self._names
        if tensor.dim() < 2 or not tensor.numel() or tensor.dtype not in FLOATS:
            return False
        chosen = self._chosen.setdefault(kind_of(name), [])
        insort(chosen, (crc32(name.encode()), name))
        for _, dropped in chosen[NAMES:]:
            self._coming.pop(dropped, None)
        del chosen[NAMES:]
        return any(name == kept for _, kept in chosen)


def updates_of(scheme: Scheme) -> Updates | None:
    """None where single rows do not tell what their codes are."""
    return Updates(scheme) if scheme.shares in WITHIN_ROWS else None


def kind_of(name: str) -> str:
    """Such as q_proj, or experts.gate_proj: the name without numbers and what stands before them."""
    parts = [part for part in name.removesuffix(".weight").split(".") if not part.isdigit()]
    return ".".join(parts[-2:] if parts[-2:-1] == ["experts"] else parts[-1:])


def compared(definition: Definition, old: Rows, new: Rows) -> dict[str, Sums]:
    """The sums of each kind."""
    kinds: dict[str, Sums] = {}
    for name in old.keys() & new.keys():
        kinds.setdefault(kind_of(name), Sums()).add(_between(definition, old[name], new[name]))
    return dict(sorted(kinds.items()))


def total(sums: Iterable[Sums]) -> Sums:
    found = Sums()
    for one in sums:
        found.add(one)
    return found


def _between(definition: Definition, old_RK: torch.Tensor, new_RK: torch.Tensor) -> Sums:
    (old_codes, old_scale), (codes_RK, scale) = definition.quantize(old_RK), definition.quantize(new_RK)
    dq_RK = definition.dequantize(codes_RK, scale).double() - definition.dequantize(old_codes, old_scale).double()
    dw_RK = new_RK.bfloat16().double() - old_RK.bfloat16().double()
    dq, dw, rows = dq_RK.ravel(), dw_RK.ravel(), len(dw_RK)
    scale_RK = scale.double().reshape(rows, -1).repeat_interleave(dw_RK[0].numel() // (scale.numel() // rows), 1)
    expected = (dw_RK.abs() / scale_RK).clamp(max=1).sum()
    changed = (codes_RK.view(torch.uint8) != old_codes.view(torch.uint8)).sum()
    numbers = (one.item() for one in (dq @ dw, dw @ dw, dq @ dq, changed, expected))
    return Sums(*numbers, dw.numel())


def _named(group: str, sums: Sums, definition: Definition) -> dict[str, float]:
    found = sums.as_metrics()
    if found and definition.rounds:
        found |= sums.codes()
    return {f"{group}/{name}": value for name, value in found.items()}


def _some_rows(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Neighbouring rows; of a stack of matrices, of one of them."""
    number = crc32(name.encode())
    while tensor.dim() > 2:
        tensor = tensor[number % len(tensor)]
    first = number % max(len(tensor) - ROWS + 1, 1)
    return tensor[first : first + ROWS]


def _is_quantized(entry: Entry | None) -> bool:
    return entry is not None and any(resident.codes for resident, _ in entry.moves)
