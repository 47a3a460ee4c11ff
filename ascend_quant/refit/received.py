"""Counts the tensors that a refit has received, as they were sent: stacked experts are one tensor."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager

import torch

from ascend_quant.schemes.tensors import one_by_one
from ascend_quant.transfer.validate import NamedTensor


class Received:
    """Counts of the tensors received in one refit.

    Attributes:
        tensors, bytes: received so far from the trainer or the checkpoint.
    """

    def __init__(self) -> None:
        self.tensors = self.bytes = 0

    def count(self, tensors: int, nbytes: int) -> None:
        """Count received tensors."""
        self.tensors += tensors
        self.bytes += nbytes

    @contextmanager
    def counted_once(self, sent: torch.Tensor) -> Generator[None]:
        """Count everything inside the block as parts of one sent tensor."""
        tensors, nbytes = self.tensors, self.bytes
        yield
        if self.tensors > tensors:
            self.tensors, self.bytes = tensors + 1, nbytes + sent.nbytes


def experts_one_by_one(weights: Iterable[NamedTensor], received: Received) -> Iterable[NamedTensor]:
    """Return the tensors, with stacked experts split into single ones; a list without stacks is returned unchanged."""
    if isinstance(weights, (list, tuple)) and all(tensor.dim() < 3 for _, tensor in weights):
        return weights
    return _split(weights, received)


def _split(weights: Iterable[NamedTensor], received: Received) -> Iterator[NamedTensor]:
    for name, tensor in weights:
        with received.counted_once(tensor):
            yield from one_by_one(name, tensor)
