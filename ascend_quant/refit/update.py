"""How much of the trainer's update the engine's codes took, between two refits, on a few rows.

At RL's learning rates a step moves most weights by far less than one code. Most codes then stay, a few jump by a whole
one, and the policy that samples may stand still, or walk with a noise of its own. With w the weights as the engine gets
them, in BF16, q what their codes stand for by the scheme's definition, and d a difference between two refits:

    share     <dq, dw> / <dw, dw>      1: on average the codes go as far as the weights, in their direction
    cosine    <dq, dw> / |dq| |dw|     1: and nowhere else
    changed   codes that differ, and
    expected  mean of min(1, |dw| / scale): as many would differ if every weight lay anywhere within its code
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ascend_quant.kernels.host_copy import HostCopy
from ascend_quant.schemes import Definition, Scheme, definition_of

Rows = dict[str, torch.Tensor]  # by the tensor's name, (R, K)


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
            parts = torch.split(copy.read(), [self._shapes[name].numel() for name in names])
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
    return Sums(float(dq @ dw), float(dw @ dw), float(dq @ dq), float(changed), float(expected), dw.numel())


def _named(group: str, sums: Sums, definition: Definition) -> dict[str, float]:
    found = sums.as_metrics()
    if found and definition.rounds:
        found |= sums.codes()
    return {f"{group}/{name}": value for name, value in found.items()}
