"""How much of the trainer's update the engine's codes took, between two refits, on a few rows.

At RL's learning rates a step moves most weights by far less than one code. Most codes then stay, a few jump by a whole
one, and the policy that samples may stand still, or walk with a noise of its own. With w the weights as the engine gets
them, in BF16, q what their codes stand for by the scheme's definition, and d a difference between two refits; of codes
that a trainer has rounded otherwise (rounding.py), w are its float32 weights and q what was sent:

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
from ascend_quant.kernels.moves import SCALE_BYTES, scales_in
from ascend_quant.schemes import Definition, Scheme, definition_of

Rows = dict[str, torch.Tensor]  # by the tensor's name, (R, K)


@dataclass(frozen=True)
class Quantized:
    """Rows of one kind of layer and one length, side by side.

    Attributes:
        names: of their tensors.
        w_RK: BF16, or float32 beside codes that were sent. codes_RK, scale: of them. q_RK: float32, their values.
    """

    names: tuple[str, ...]
    w_RK: torch.Tensor
    codes_RK: torch.Tensor
    scale: torch.Tensor
    q_RK: torch.Tensor


class Copied:
    """Rows on their way to host memory in one copy a dtype, which nobody waits for until they are read."""

    def __init__(self, rows: Rows):
        self._shapes = {name: one.shape for name, one in rows.items()}
        self._copies: list[tuple[list[str], HostCopy]] = []
        for dtype in sorted({one.dtype for one in rows.values()}, key=str):
            alike = {name: one.ravel() for name, one in rows.items() if one.dtype == dtype}
            self._copies.append(([*alike], HostCopy(torch.cat([*alike.values()]))))

    @cached_property
    def rows(self) -> Rows:
        """As they were sent."""
        found: Rows = {}
        for names, copy in self._copies:
            parts = torch.split(copy.read(), [self._shapes[name].numel() for name in names])
            found |= {name: part.view(self._shapes[name]) for name, part in zip(names, parts, strict=True)}
        return found


class Kept:
    """One refit's rows.

    Args:
        rows: BF16, or float32 if they were sent as codes.
        sent: int8 (R, K + 16) of the same rows, as they travelled; None where codes are what the definition makes.
    """

    def __init__(self, scheme: Scheme, rows: Rows, sent: Rows | None = None):
        self.definition: Definition = definition_of(scheme)
        self._rows, self._sent = Copied(rows), None if sent is None else Copied(sent)

    @property
    def rows(self) -> Rows:
        """As they were given."""
        return self._rows.rows

    @cached_property
    def quantized(self) -> dict[tuple[str, int], Quantized]:
        """By kind and K."""
        alike: dict[tuple[str, int], list[str]] = {}
        for name in sorted(self.rows):
            alike.setdefault((kind_of(name), self.rows[name].shape[-1]), []).append(name)
        return {key: self._of(names) for key, names in alike.items()}

    def _of(self, names: list[str]) -> Quantized:
        if self._sent is None:
            w_RK = torch.cat([self.rows[name].bfloat16() for name in names])
            codes_RK, scale = self.definition.quantize(w_RK)
        else:
            w_RK = torch.cat([self.rows[name] for name in names])
            sent_RL = torch.cat([self._sent.rows[name] for name in names])
            codes_RK, scale = sent_RL[:, : w_RK.shape[1]], scales_in(sent_RL[:, w_RK.shape[1] :][:, :SCALE_BYTES])
        return Quantized(tuple(names), w_RK, codes_RK, scale, self.definition.dequantize(codes_RK, scale))


@dataclass
class Sums:
    """Of two refits, added up over rows."""

    dq_dw: float = 0.0
    dw_dw: float = 0.0
    dq_dq: float = 0.0
    changed: float = 0.0
    expected: float = 0.0
    elements: int = 0

    @classmethod
    def between(cls, old: Quantized, new: Quantized) -> "Sums":
        """Of rows of the same tensors."""
        dq_RK, dw_RK = new.q_RK - old.q_RK, new.w_RK.float() - old.w_RK.float()
        of_each_scale = (len(dw_RK), new.scale.numel() // len(dw_RK), -1)
        expected = (dw_RK.abs().view(of_each_scale) / new.scale.view(of_each_scale)).clamp(max=1)
        changed = new.codes_RK.view(torch.uint8) != old.codes_RK.view(torch.uint8)
        parts = dq_RK * dw_RK, dw_RK.square(), dq_RK.square(), changed, expected
        dq_dw, dw_dw, dq_dq, differ, would_differ = (float(part.sum(dtype=torch.float64)) for part in parts)
        return cls(dq_dw, dw_dw, dq_dq, differ, would_differ, dw_RK.numel())

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

    first: Kept = field(repr=False)
    last: Kept = field(repr=False)
    now: Kept = field(repr=False)

    @cached_property
    def figures(self) -> dict[str, float]:
        """`update/*` since the last refit, in all and by kind; `since_start/*`."""
        kinds = compared(self.last, self.now)
        found = self._named("update", total(kinds.values()))
        for kind, sums in kinds.items():
            found |= {f"update/{kind}/{name}": value for name, value in sums.as_metrics().items()}
        return found | self._named("since_start", total(compared(self.first, self.now).values()))

    def _named(self, group: str, sums: Sums) -> dict[str, float]:
        found = sums.as_metrics()
        if found and self.now.definition.rounds:
            found |= sums.codes()
        return {f"{group}/{name}": value for name, value in found.items()}


def kind_of(name: str) -> str:
    """Such as q_proj, or experts.gate_proj: the name without numbers and what stands before them."""
    parts = [part for part in name.removesuffix(".weight").split(".") if not part.isdigit()]
    return ".".join(parts[-2:] if parts[-2:-1] == ["experts"] else parts[-1:])


def compared(old: Kept, new: Kept) -> dict[str, Sums]:
    """The sums of each kind of which both have the same rows."""
    kinds: dict[str, Sums] = {}
    for key, here in new.quantized.items():
        before = old.quantized.get(key)
        if before is not None and before.names == here.names:
            kinds.setdefault(key[0], Sums()).add(Sums.between(before, here))
    return kinds


def total(sums: Iterable[Sums]) -> Sums:
    found = Sums()
    for one in sums:
        found.add(one)
    return found
