"""The trainer-to-engine proof: digests of what was sent, compared with digests of what was received.

    trainer:  for name, tensor in sending(weights): ...    the weights, then their digests as one more tensor
    engine:   proof = Receiving()
              weights = proof.take(bucket)                 of each bucket, before it is loaded
              proof.prove()                                after the last one

A digest is of a parameter's bits as they travel and of their place in it (see `oracle.digest`), so neither the order,
nor the buckets, nor the ranks matter. Nothing waits for the device until the digests are read, once a sync.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from ascend_quant.kernels import kernels_for
from ascend_quant.oracle import add_digests, last_dimension
from ascend_quant.refit import RefitError

SENT = "ascend_quant.sent_digests"  # travels like a parameter of this name
FORMAT = 1
SHOWN = 8  # parameters that one message lists

NamedTensor = tuple[str, torch.Tensor]
Digest = tuple[int, int]  # 64 bits, and over how many elements


class Digests:
    """Digests of named tensors, which may come in parts."""

    def __init__(self) -> None:
        self._elements: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self._unread: dict[torch.device, tuple[list[str], list[torch.Tensor]]] = {}

    def add(self, name: str, tensor: torch.Tensor, first_row: int = 0, first_column: int = 0) -> None:
        """Take in a tensor, or a part of one; asynchronous, like a kernel that reads `tensor`.

        Args:
            tensor: any shape and dtype; a part must be consecutive rows of the whole (a row: its last dimension).
            first_row, first_column: where in the whole the part begins.
        """
        self._launch([name], [tensor], [first_row], [first_column])

    def add_all(self, weights: Iterable[NamedTensor]) -> None:
        """Take in whole tensors, with as few launches as the device allows."""
        groups: dict[torch.device, list[NamedTensor]] = {}
        for name, tensor in weights:
            groups.setdefault(tensor.device, []).append((name, tensor))
        for group in groups.values():
            names, tensors = zip(*group, strict=True)
            self._launch(names, tensors)

    def merge(self, others: Mapping[str, Digest]) -> None:
        """Take in another's `as_dict()`, say of the rank that holds the other parts."""
        for name, (digest, elements) in others.items():
            self._count(name, digest, elements)

    def as_dict(self) -> dict[str, Digest]:
        """Each tensor's digest and number of elements; waits for the device."""
        for names, digests in self._unread.values():
            for name, digest in zip(names, torch.cat(digests).tolist(), strict=True):
                self._count(name, digest, 0)
        self._unread.clear()
        return {name: (self._sums[name], elements) for name, elements in self._elements.items()}

    def _launch(self, names: Sequence[str], tensors: Sequence[torch.Tensor], *firsts: Sequence[int]) -> None:
        device = tensors[0].device
        known, digests = self._unread.setdefault(device, ([], []))
        digests.append(kernels_for(device).digests(tensors, *firsts))
        known.extend(names)
        for name, tensor in zip(names, tensors, strict=True):
            self._elements[name] += tensor.numel()

    def _count(self, name: str, digest: int, elements: int) -> None:
        self._elements[name] += elements
        self._sums[name] = add_digests(self._sums[name], digest)


def prepare(device: torch.device, tensors: Iterable[torch.Tensor]) -> None:
    """Have the kernels compiled that digests of such tensors on `device` will need; their values do not matter."""
    kernels_for(device).prepare(device, (), {(tensor.dtype, last_dimension(tensor)) for tensor in tensors})


def compare(sent: Mapping[str, Digest], received: Mapping[str, Digest]) -> None:
    """Raise RefitError unless both sides name the same parameters, with the same elements and the same bits."""
    faults = [f"{name} is missing" for name in sent if name not in received]
    faults += [f"{name} was never sent" for name in received if name not in sent]
    for name, (digest, elements) in received.items():
        sent_digest, sent_elements = sent.get(name, (digest, elements))
        if elements != sent_elements:
            faults.append(f"{name} has {elements} elements, {sent_elements} were sent")
        elif digest != sent_digest:
            faults.append(f"{name} has other values than were sent")
    if faults:
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        count = f"{len(faults)} of {len(sent.keys() | received.keys())}"
        raise RefitError(
            f"{count} parameters did not arrive as the trainer sent them: {'; '.join(faults[:SHOWN])}{more}. "
            "Sync again; if it happens again, look for what writes to the weights on their way, or for broken memory"
        )


def encode(digests: Mapping[str, Digest]) -> torch.Tensor:
    """JSON as a uint8 tensor (bytes) on the CPU; its length does not depend on the digests' values."""
    rows = {name: [f"{digest:016x}", elements] for name, (digest, elements) in digests.items()}
    return torch.frombuffer(bytearray(json.dumps({"format": FORMAT, "digests": rows}).encode()), dtype=torch.uint8)


def decode(tensor: torch.Tensor) -> dict[str, Digest]:
    """What `encode` was given; waits for the device.

    Raises:
        RefitError: these are not digests, or digests of another format.
    """
    content = bytearray(tensor.nbytes)
    try:
        torch.frombuffer(content, dtype=torch.uint8).copy_(tensor)
        message = json.loads(content)
        if message["format"] != FORMAT:
            raise ValueError(f"format {message['format']}, this side reads {FORMAT}")
        return {name: (int(digest, 16), int(elements)) for name, (digest, elements) in message["digests"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise RefitError(
            f"{SENT} cannot be read ({type(error).__name__}: {error}): install the same ascend-quant on the trainer's "
            "and on the engine's side; if it is the same, the digests were damaged on their way"
        ) from None


def sending(weights: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
    """The weights as they are, then their digests under the name SENT, on the last weight's device."""
    digests, device = Digests(), torch.device("cpu")
    for name, tensor in weights:
        digests.add(name, tensor)  # at once: whoever produces the tensors may reuse their memory
        device = tensor.device
        yield name, tensor
    yield SENT, encode(digests.as_dict()).to(device)


class Receiving:
    """The engine's side of one sync.

    Args:
        wanted: whether the trainer sends digests; without, nothing is done or checked.
    """

    def __init__(self, wanted: bool = True) -> None:
        self._wanted = wanted
        self._received = Digests()
        self._sent: dict[str, Digest] | None = None

    def take(self, weights: Sequence[NamedTensor]) -> list[NamedTensor]:
        """Take in a bucket; returns it without the trainer's digests. Keeps no tensor of it."""
        if not self._wanted:
            return list(weights)
        parameters = []
        for name, tensor in weights:
            if name == SENT:
                self._sent = decode(tensor)
            else:
                parameters.append((name, tensor))
        self._received.add_all(parameters)
        return parameters

    def prove(self) -> int:
        """How many parameters arrived as they were sent, which is all of them; waits for the device.

        Raises:
            RefitError: some did not, by their names; or the trainer's digests never came.
        """
        if not self._wanted:
            return 0
        if self._sent is None:
            raise RefitError(
                f"the trainer's digests ({SENT}) never came: send the weights through ascend_quant.proof.sending, "
                "or turn the proof off on both sides"
            )
        compare(self._sent, self._received.as_dict())
        return len(self._sent)
