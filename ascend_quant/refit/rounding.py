"""How a trainer that sends codes rounds: nearest, as an engine does, or so that less than a code is not lost.

oracle/rounding.py defines both others. They see the float32 weights of the optimizer. `Hashed` has no state: whoever
knows seed, step and name makes the same bytes again, of any rows. `Carried` keeps, of each row that this process sends,
what the codes of the last step have left (float32) and that step's codes, 5 bytes an element, in host memory.

A step may be synced more than once: to engines in two places, or again after a sync that failed. Both then send the
same bytes. What was carried is fed on once the step or the weights are others.
"""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ascend_quant import oracle
from ascend_quant.kernels import rounding
from ascend_quant.refit.coding import TAIL, Part, as_matrices, encode, put_scales
from ascend_quant.refit.errors import RefitError
from ascend_quant.schemes import Scheme

logger = logging.getLogger(__name__)

NEAREST, HASHED, CARRIED = "nearest", "hashed", "carried"
ROUNDINGS = (NEAREST, HASHED, CARRIED)
ROUNDED = "int8"  # the scheme that all of them are of


class Nearest:
    """To the nearest code of the BF16 weight: what an engine makes of it.

    Attributes:
        step: of the trainer, whose weights leave.
        by_shard: whether the same rows must be encoded by the same process at every step.
        of_float32: whether codes are of the float32 weights, not of what BF16 keeps of them.
    """

    step = 0
    by_shard = of_float32 = False

    def begin(self, step: int | None) -> None:
        """The weights of a step are about to leave; None for those of the last one once more."""
        if step is not None:
            self.step = step

    def encode(self, parts: Sequence[Part], sent: Sequence[torch.Tensor], scheme: Scheme) -> None:
        """Quantize rows that are on one device into the tensors that will travel, see `coding.encode`."""
        encode(parts, sent, scheme)


class Hashed(Nearest):
    """Up or down by a draw that is a hash of seed, step, name and index: unbiased, and the same wherever it is made."""

    of_float32 = True

    def __init__(self, seed: int):
        self._seed = seed

    def encode(self, parts: Sequence[Part], sent: Sequence[torch.Tensor], scheme: Scheme) -> None:
        pairs = float32_matrices(parts, sent)
        scales = [
            rounding.hashed(part.rows, oracle.key_of(self._seed, self.step, part.name), part.first, one[:, :-TAIL])
            for part, one in pairs
        ]
        _put(scales, [one for _, one in pairs])


@dataclass
class Last:
    """Of some rows, what left with the last step.

    Attributes:
        step, sum: of the weights: a sum of their bits.
        left_NK: float32, on the host: what the codes left over. sent_NL: on the host: codes and scales.
    """

    step: int
    sum: torch.Tensor
    left_NK: torch.Tensor
    sent_NL: torch.Tensor


class Carried(Nearest):
    """To the nearest code of the weight and what the codes before have left of it."""

    by_shard = of_float32 = True

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Last] = {}

    @property
    def bytes(self) -> int:
        """Of host memory."""
        return sum(one.left_NK.nbytes + one.sent_NL.nbytes for one in self._last.values())

    def encode(self, parts: Sequence[Part], sent: Sequence[torch.Tensor], scheme: Scheme) -> None:
        pairs = float32_matrices(parts, sent)
        if pairs and not self._last:
            logger.warning("what codes leave over is carried from step %d on, and was nothing before", self.step)
        fresh = [(part, one) for part, one in pairs if not self._repeats(part, one)]
        left = [self._left(part) for part, _ in fresh]
        scales = [
            rounding.carried(part.rows, left_NK, one[:, :-TAIL])
            for (part, one), left_NK in zip(fresh, left, strict=True)
        ]
        _put(scales, [one for _, one in fresh])
        for (part, one), left_NK in zip(fresh, left, strict=True):
            kept = Last(self.step, _sum_of(part.rows), _on_host(left_NK), _on_host(one))
            self._last[part.name, part.first] = kept

    def _repeats(self, part: Part, sent_NL: torch.Tensor) -> bool:
        """Whether these weights have left with this step already; then the same bytes leave again."""
        last = self._last.get((part.name, part.first))
        if last is None or last.step != self.step or not torch.equal(last.sum, _sum_of(part.rows)):
            return False
        sent_NL.copy_(last.sent_NL)
        return True

    def _left(self, part: Part) -> torch.Tensor:
        """A copy on the rows' device; zeros where nothing was sent before.

        Raises:
            RefitError: other rows begin at this index than at the last step.
        """
        last = self._last.get((part.name, part.first))
        if last is None:
            return torch.zeros(part.rows.shape, dtype=torch.float32, device=part.rows.device)
        if last.left_NK.shape != part.rows.shape:
            raise RefitError(
                f"{part.name}: rows {tuple(part.rows.shape)} from index {part.first} on, but what was carried is of "
                f"{tuple(last.left_NK.shape)}: keep the shards as they were, or restart the trainer"
            )
        return last.left_NK.to(part.rows.device, copy=True)


def float32_matrices(parts: Sequence[Part], sent: Sequence[torch.Tensor]) -> list[tuple[Part, torch.Tensor]]:
    """See `as_matrices`; logs once of weights that have lost already what a rounding is to keep."""
    pairs = as_matrices(parts, sent)
    if lost := [part for part, _ in pairs if part.rows.dtype != torch.float32]:
        tell_of_lost_updates(lost[0].name, lost[0].rows.dtype)
    return pairs


@functools.cache  # once
def tell_of_lost_updates(name: str, dtype: torch.dtype) -> None:
    logger.warning(
        "%s and others come as %s from the trainer: their codes keep of an update what is in that dtype alone",
        name,
        dtype,
    )


def rounding_of(name: str, seed: int = 0) -> Nearest:
    """One of `ROUNDINGS`; a new one, which has carried nothing."""
    return {NEAREST: Nearest, HASHED: lambda: Hashed(seed), CARRIED: Carried}[name]()


def _put(scales: Sequence[torch.Tensor], sent: Sequence[torch.Tensor]) -> None:
    if scales:
        put_scales(torch.cat([*scales]), sent)


def _sum_of(rows_NK: torch.Tensor) -> torch.Tensor:
    return rows_NK.float().view(torch.int32).sum(dtype=torch.int64)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", copy=tensor.device.type == "cpu")
