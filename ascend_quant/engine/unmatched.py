"""Unmatched weights: tensors that a trainer may send although this rank has no parameter for them.

With tied embeddings (tie_word_embeddings), lm_head must equal the embedding. Experts of other ranks are accepted if a
local expert has the same name except for its number.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import torch

from ascend_quant.refit import Check, RefitError
from ascend_quant.refit.plan import Entry
from ascend_quant.refit.resident import ResidentWeight
from ascend_quant.transfer.prequantized import parted
from ascend_quant.transfer.validate import NamedTensor, check_sent, sent_twice

HEAD = "lm_head.weight"
ELEMENTS = 1 << 24  # elements that are compared at a time
EXPERT = re.compile(r"(.*\.experts\.)(0|[1-9]\d{0,5})(\..+)")


class TiedHead:
    """`lm_head.weight` of a model with tied embeddings.

    Args:
        resident: the embedding (rows of this rank, hidden).
        shape: shape of the whole embedding, without padding.
        first row of this rank, and the number of its rows.
    """

    def __init__(self, resident: ResidentWeight, shape: tuple[int, int], first: int, count: int):
        self.resident, self.shape, self.rows = resident, shape, slice(first, first + count)
        self.begin()

    def begin(self) -> None:
        """Begin a refit."""
        self._came, self._kept, self._differing = False, None, None

    def apart(self, weights: Sequence[NamedTensor], flush: Callable[[], None]) -> Sequence[NamedTensor]:
        """Return the weights without the head, which is compared after `flush` has started the queued writes.

        Raises:
            RefitError: see `take`.
        """
        heads = [tensor for name, tensor in weights if name == HEAD]
        if not heads:
            return weights
        for tensor in heads:
            flush()
            self.take(tensor)
        return [(name, tensor) for name, tensor in weights if name != HEAD]

    def take(self, tensor: torch.Tensor) -> None:
        """Compare the head with the embedding, whose writes are flushed first; keep a copy if that has not arrived yet.

        Raises:
            RefitError: the head was sent twice, or has another dtype or shape.
        """
        check_sent(HEAD, tensor)
        if self._came:
            raise sent_twice(HEAD)
        self.resident.check_dtype(tensor.dtype)
        if tuple(tensor.shape) != self.shape:
            raise RefitError(
                f"{HEAD}: shape {tuple(tensor.shape)}, but the embedding that it is tied to has shape {self.shape}"
            )
        self._came, own = True, tensor[self.rows]
        if self.resident.unwritten:
            self._kept = own.to(self.resident.data.device, self.resident.data.dtype, copy=True)
        else:
            self._compare(own)

    def is_held(self, tensor: torch.Tensor) -> bool:
        """Return whether the head equals the embedding."""
        held = self.resident.data[: self.rows.stop - self.rows.start]
        own = tensor[self.rows] if tuple(tensor.shape) == self.shape else None
        return own is not None and torch.equal(own.to(held.device, held.dtype), held)

    def check(self) -> None:
        """End the refit.

        Raises:
            RefitError: the head differs from the embedding.
        """
        if self._kept is not None:
            self._compare(self._kept)
        self._kept = None
        if self._differing is not None and (count := int(self._differing)):
            raise RefitError(
                f"{HEAD}: {count} elements differ from {self.resident.name}, which this model uses for the "
                "logits (tie_word_embeddings); send the same values, or only the embedding"
            )

    def _compare(self, own: torch.Tensor) -> None:
        held = self.resident.data[: len(own)]
        step = max(1, ELEMENTS // held.shape[1])
        self._differing = torch.zeros((), dtype=torch.int64, device=held.device)
        for theirs, ours in zip(torch.split(own, step), torch.split(held, step), strict=True):
            self._differing += (theirs.to(ours.device, ours.dtype) != ours).sum()


class UnmatchedWeights(Check):
    """The tensors of one model for which this rank has no parameter.

    Args:
        head: the tied head, if there is one.
        experts: number of experts of a layer over all ranks; 0 if every rank has all of them.
    """

    def __init__(self, head: TiedHead | None, experts: int):
        self.head, self.experts = head, experts
        self._elsewhere: list[str] = []

    def begin(self) -> None:
        """Begin a refit."""
        self._elsewhere = []
        if self.head is not None:
            self.head.begin()

    def is_known(self, name: str) -> bool:
        """Return whether a loader may skip a tensor of this name."""
        return (self.head is not None and name == HEAD) or self._is_expert(name)

    def is_left_out(self, name: str, tensor: torch.Tensor, entries: Mapping[str, Entry]) -> bool:
        """Return whether a tensor can be ignored while no refit is open, so that it does not open one.

        Args:
            entries: plan entries of the last refit.
        """
        if self.head is not None and name == HEAD:
            check_sent(name, tensor)
            return self.head.is_held(tensor)
        return name in entries and entries[name].is_idle

    def may_be_skipped(self, name: str) -> bool:
        """Return whether a loader may skip a tensor by design; a tied head may not, see `TiedHead`."""
        return self.head is None or not name.startswith(HEAD.removesuffix("weight"))

    def leave_out(self, name: str) -> bool:
        """Return whether an unwritten tensor may belong to another rank; `check` verifies this."""
        if self._is_expert(name):
            self._elsewhere.append(name)
            return True
        return False

    def check(self, entries: Mapping[str, Entry]) -> None:
        """End the refit.

        Raises:
            RefitError: the head differs from the embedding, or no local expert matches a sent expert.
        """
        if self.head is not None:
            self.head.check()
        if self._elsewhere:
            own = {_pattern(parted(name)[0]) for name, entry in entries.items() if not entry.is_idle}
            if strange := [name for name in self._elsewhere if _pattern(parted(name)[0]) not in own]:
                raise RefitError(f"extra tensor {strange[0]}: this model has no expert tensor of that name")

    def _is_expert(self, name: str) -> bool:
        found = EXPERT.fullmatch(name) if self.experts else None
        return found is not None and int(found[2]) < self.experts


def _pattern(name: str) -> tuple[str, str] | None:
    found = EXPERT.fullmatch(name)
    return found and (found[1], found[3])
