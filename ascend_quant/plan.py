"""A refit plan: which resident rows each tensor of the trainer ends in, learnt from one refit through the loaders.

An engine's loaders take tens of microseconds of Python a tensor. Where a tensor went the first time, with its shape,
is where it goes every time; so later refits look its moves up by name. What cannot be known that way (a loader that
rearranged the tensor first, padding) keeps going through the loader.
"""

from dataclasses import dataclass, field

import torch

from ascend_quant.kernels.moves import Move
from ascend_quant.resident import ResidentWeight


@dataclass(eq=False)
class Entry:
    """What became of one tensor.

    Attributes:
        shape: the tensor's.
        moves: the parts of the contiguous tensor and their places; empty for one that this rank has no use for.
        by_loader: the moves do not tell the whole story: ask the loader every time.
    """

    shape: torch.Size
    moves: list[tuple[ResidentWeight, Move]] = field(default_factory=list)
    by_loader: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether this rank has no use for the tensor."""
        return not self.moves and not self.by_loader

    def add(self, resident: ResidentWeight, move: Move) -> None:
        """Note a move, joined to the last one if it goes on there: a stack of experts becomes one."""
        if self.moves and self.moves[-1][0] is resident and self.moves[-1][1].followed_by(move):
            move = self.moves.pop()[1].joined(move)
        self.moves.append((resident, move))

    def is_matched_by(self, other: "Entry | None") -> bool:
        """Whether another refit's entry of the same name wrote as much."""
        if other is None:
            return self.is_idle
        return sum(move.rows for _, move in other.moves) >= sum(move.rows for _, move in self.moves)

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether the moves tell where this tensor goes."""
        known = not self.by_loader and tensor.shape == self.shape
        return known and tensor.is_contiguous() and tensor.is_floating_point()
