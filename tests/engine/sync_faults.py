"""What may go wrong between a trainer and its engine in a weight sync, one fault a function or a moment.

A stream is what leaves the trainer: names with tensors, the digests of all of them last. Faults of a stream come after
the digests were taken, as on a wire; faults of the weights before, as in a trainer. Moments count tensors: 0 is before
the first. test_verl_transfer.py has what each must end in.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator

import torch

Stream = list[tuple[str, torch.Tensor]]
EMBEDDING, NORM, QUERY = "model.embed_tokens.weight", "input_layernorm.weight", "self_attn.q_proj.weight"


def at(stream: Stream, part: str) -> int:
    """The place of the first tensor with this in its name."""
    return next(index for index, (name, _) in enumerate(stream) if part in name)


def flip(stream: Stream, index: int, bit: int = 1, byte: int = -2) -> None:
    name, tensor = stream[index]
    other = tensor.clone()
    other.view(torch.uint8).view(-1)[byte] ^= bit
    stream[index] = name, other


def change(stream: Stream, index: int, made: Callable[[torch.Tensor], torch.Tensor]) -> None:
    name, tensor = stream[index]
    stream[index] = name, made(tensor).contiguous()


def swap(stream: Stream) -> None:
    """Two layers' queries, each under the other's name."""
    first, second, *_ = (index for index, (name, _) in enumerate(stream) if QUERY in name)
    (one, a), (two, b) = stream[first], stream[second]
    stream[first], stream[second] = (one, b), (two, a)


def swapped_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[[1, 0, *range(2, len(tensor))]]


def rename(stream: Stream) -> None:
    name, tensor = stream[5]
    stream[5] = name.replace("layers", "layer"), tensor


def repeat(stream: Stream, again: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A tensor of the first bucket comes once more in the last, ahead of the digests."""
    name, tensor = stream[at(stream, QUERY)]
    stream.insert(-1, (name, again(tensor)))


def older(stream: Stream) -> None:
    """Weights of this step with the digests of another."""
    for index, (name, tensor) in enumerate(stream[:-1]):
        if tensor.dim() == 2:
            stream[index] = name, tensor + 0.125


# by name: what is done to the stream
WRONG: dict[str, Callable[[Stream], object]] = {
    "a bit of the first tensor flips": lambda s: flip(s, 0),
    "a bit of the last tensor flips": lambda s: flip(s, -2),
    "a bit of a norm flips": lambda s: flip(s, at(s, NORM)),
    "a bit of the embedding flips": lambda s: flip(s, at(s, EMBEDDING)),
    "the highest bit of an element flips": lambda s: flip(s, at(s, QUERY), 128),
    "all signs of a tensor turn": lambda s: change(s, at(s, QUERY), torch.neg),
    "two tensors change places": swap,
    "two rows change places": lambda s: change(s, at(s, QUERY), swapped_rows),
    "a tensor comes as float16": lambda s: change(s, at(s, QUERY), torch.Tensor.half),
    "a tensor comes as float32": lambda s: change(s, at(s, QUERY), torch.Tensor.float),
    "a tensor comes transposed": lambda s: change(s, at(s, QUERY), torch.t),
    "a tensor comes flat": lambda s: change(s, at(s, QUERY), torch.flatten),
    "half of a tensor comes": lambda s: change(s, at(s, QUERY), lambda w: w[: len(w) // 2]),
    "a tensor comes as zeros": lambda s: change(s, at(s, QUERY), torch.zeros_like),
    "the first tensor is lost": lambda s: s.pop(0),
    "a tensor is lost": lambda s: s.pop(20),
    "the last tensor is lost": lambda s: s.pop(-2),
    "a norm is lost": lambda s: s.pop(at(s, NORM)),
    "a whole bucket is lost": lambda s: s.__delitem__(slice(10, 20)),
    "all but the digests is lost": lambda s: s.__delitem__(slice(0, -1)),
    "a tensor comes again with other values": lambda s: repeat(s, torch.neg),
    "a tensor has another name": rename,
    "a tensor comes that no model has": lambda s: s.insert(3, ("model.layers.0.extra.weight", torch.ones(4, 4))),
    "the digests are lost": lambda s: s.pop(),
    "the digests are cut off": lambda s: change(s, -1, lambda digests: digests[:-3]),
    "a bit of the digests flips": lambda s: change(s, -1, lambda digests: digests ^ 1),
    "the digests are of another step": older,
}


def poisoned(value: float) -> Callable[[Stream], None]:
    def put(weights: Stream) -> None:
        weights[at(weights, QUERY)][1].view(-1)[7] = value

    return put


UNSOUND: dict[str, Callable[[Stream], object]] = {  # of the trainer itself: its digests are of them
    "a weight is NaN": poisoned(float("nan")),
    "a weight is infinite": poisoned(float("inf")),
    "the trainer forgets a tensor": lambda w: w.pop(20),
    "the trainer has another model's tensor": lambda w: w.insert(
        3, ("model.layers.9.mlp.up_proj.weight", torch.ones(4, 4))
    ),
    "the trainer's tensor has other rows": lambda w: change(w, at(w, QUERY), lambda tensor: tensor[:-1]),
}

HARMLESS: dict[str, Callable[[Stream], object]] = {  # and so no faults: the sync must go through
    "tensors come in the opposite order": lambda s: s.__setitem__(slice(0, -1), s[-2::-1]),
    "the digests come twice in a bucket": lambda s: s.append(s[-1]),
    "digests come first": lambda s: s.insert(0, s.pop()),
}
MOMENTS = {"before the first tensor": 0, "between two buckets": 12, "before the last tensor": 50}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Until the process that started this one goes on with it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def fail() -> None:
    raise RuntimeError("the trainer's own error")


def wait() -> None:
    time.sleep(0.5)


ACTS = {"is killed": die, "stands still for a second": stop, "fails": fail, "is slow": wait}


def in_time(fault: str, stream: Stream) -> Iterator[tuple[str, torch.Tensor]]:
    """The stream; at the moment that a fault such as "is killed, between two buckets" names, that happens."""
    act, _, moment = fault.partition(", ")
    for index, pair in enumerate(stream):
        if index == MOMENTS.get(moment):
            ACTS[act]()
        yield pair
