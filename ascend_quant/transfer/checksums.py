"""End-to-end checksums of a weight transfer: digests of the sent tensors, compared with those of the received ones.

    trainer:  for name, tensor in sending(weights): ...    the weights, then their digests as one more tensor
    engine:   proof = Receiving()
              weights = proof.take(bucket)                 for each bucket, before it is loaded
              proof.prove()                                after the last one

digests.py describes what a digest covers. A trainer with fake quantization also sends the names of its ignored layers;
the engine must ignore the same layers.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ascend_quant.files.documents import BadDocument, is_array, is_object, parse_json
from ascend_quant.kernels.events import HostCopy
from ascend_quant.oracle import PRIME
from ascend_quant.schemes.layer_names import Unquantized
from ascend_quant.transfer.digests import Digest, Digests, compare
from ascend_quant.transfer.errors import RefitError
from ascend_quant.transfer.validate import NamedTensor, check_sent

SENT = "ascend_quant.sent_digests"  # sent like a parameter with this name
FORMAT = 3  # 2 had no left_alone; 1 had neither dtype nor shape, and sums modulo 2**32
SHOWN = 8  # parameters that one message lists
DTYPES = {str(found) for found in vars(torch).values() if isinstance(found, torch.dtype)}


class Sent(NamedTuple):
    """A trainer's message about one sync: its digests, and the layers that its fake quantization ignores.

    Attributes:
        digests: digest of each parameter.
        unquantized: the layers that its fake quantization ignores; None without fake quantization.
    """

    digests: dict[str, Digest]
    unquantized: Unquantized | None = None


def encode(digests: Mapping[str, Digest], unquantized: Unquantized | None = None) -> torch.Tensor:
    """Encode digests as JSON in a uint8 tensor on the CPU, whose length does not depend on the digests' numbers."""
    rows = {name: [f"{number:016x}", *others] for name, (number, *others) in digests.items()}
    left = None if unquantized is None else [unquantized.scheme, list(unquantized.names)]
    message = {"format": FORMAT, "digests": rows, "left_alone": left}
    text = json.dumps(message, separators=(",", ":"))  # canonical, so that every byte counts
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def decode(tensor: torch.Tensor) -> Sent:
    """Decode the message that `encode` made.

    Raises:
        RefitError: the message is not valid, or has another format.
    """
    try:
        if tensor.dtype != torch.uint8 or tensor.dim() != 1:
            raise ValueError(f"{tensor.dtype} of shape {list(tensor.shape)}, not bytes")
        text = tensor.cpu().numpy().tobytes().decode()
        message = parse_json(text, "the message")
        if not is_object(message) or "format" not in message:
            raise ValueError("no format")
        if type(message["format"]) is not int or message["format"] != FORMAT:
            raise ValueError(
                f"the trainer's side sends format {str(message['format'])[:40]}, the engine's reads {FORMAT}"
            )
        if message.keys() != {"format", "digests", "left_alone"} or not is_object(message["digests"]):
            raise ValueError("a mapping of digests and left_alone is expected")
        if json.dumps(message, separators=(",", ":")) != text:  # differs in a byte, or has a name twice
            raise ValueError("its encoding is not the one that the trainer writes")
        digests = {name: _digest(name, row) for name, row in message["digests"].items()}
        return Sent(digests, _unquantized(message["left_alone"]))
    except (ValueError, RuntimeError) as error:
        why = str(error) if isinstance(error, BadDocument) else f"{type(error).__name__}: {error}"
        raise RefitError(
            f"{SENT} cannot be read ({why}): install the same ascend-quant on the trainer's and on the "
            "engine's side; if the versions are equal, the digests were corrupted in transit"
        ) from None


def _digest(name: str, row: Any) -> Digest:
    """Parse one row of a message.

    Raises:
        ValueError: the row is not a digest.
    """
    if not is_array(row) or len(row) != 4:
        raise ValueError(f"{name[:80]!r} must have a digest, elements, dtype and shape")
    number, elements, dtype, shape = row
    if not isinstance(number, str) or not re.fullmatch("[0-9a-f]{16}", number) or int(number, 16) >= PRIME:
        raise ValueError(
            f"{name[:80]!r} has the digest {str(number)[:40]!r}, not 16 hex digits of a number below {PRIME}"
        )
    if not _are_sizes([elements]) or not is_array(shape) or not _are_sizes(shape):
        raise ValueError(f"{name[:80]!r} has {str(elements)[:40]} elements in the shape {str(shape)[:80]}")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{name[:80]!r} has the dtype {str(dtype)[:40]!r}, which torch {torch.__version__} does not")
    return Digest(int(number, 16), elements, dtype, tuple(shape))


def _unquantized(found: Any) -> Unquantized | None:
    """Parse the unquantized layers of a message; raise ValueError if it is neither null nor a scheme and names."""
    if found is None:
        return None
    if not is_array(found) or len(found) != 2 or not is_array(found[1]):
        raise ValueError(f"left_alone is {str(found)[:80]!r}, not a scheme and a list of names")
    scheme, names = found
    if wrong := [one for one in (scheme, *names) if not isinstance(one, str)]:
        raise ValueError(f"left_alone has {str(wrong[0])[:80]!r}, which is not a name")
    return Unquantized(scheme, tuple(names))


def _are_sizes(numbers: list[Any]) -> bool:
    return all(type(number) is int and 0 <= number < 2**63 for number in numbers)


def sending(weights: Iterable[NamedTensor], unquantized: Unquantized | None = None) -> Iterator[NamedTensor]:
    """Yield the weights unchanged, then their digests under the name SENT, on the last weight's device.

    Args:
        unquantized: the layers that fake quantization ignores, if it is used.

    Raises:
        RefitError: see `validate.check_sent`.
    """
    digests, device = Digests(), torch.device("cpu")
    for name, tensor in weights:
        check_sent(name, tensor)
        digests.add(name, tensor)  # at once, since the producer may reuse the memory
        device = tensor.device
        yield name, tensor
    yield digests_message(digests, unquantized, device)


def digests_message(digests: Digests, unquantized: Unquantized | None, device: torch.device) -> NamedTensor:
    """Return the tensor that follows a sync's last weight, under the name SENT; waits for the device."""
    return SENT, encode(digests.as_dict(), unquantized).to(device)


class Receiving:
    """The engine's side of one sync.

    Args:
        wanted: whether the trainer sends digests; if not, nothing is checked.
        unquantized: this engine's ignored layers, compared with those of a trainer for the same scheme; None for other
            engines.
    """

    def __init__(self, wanted: bool = True, unquantized: Unquantized | None = None) -> None:
        self._wanted, self._unquantized = wanted, unquantized
        self._received = Digests()
        self._message: HostCopy | None = None

    def take(self, weights: Sequence[NamedTensor]) -> list[NamedTensor]:
        """Add a bucket; return it without the trainer's digests, and keep no reference to its tensors.

        Raises:
            RefitError: see `validate.check_sent`; or the digests were sent twice.
        """
        if not self._wanted:
            return list(weights)
        parameters: list[NamedTensor] = []
        for name, tensor in weights:
            check_sent(name, tensor)
            if name == SENT:
                if self._message is not None:
                    raise RefitError(
                        f"the trainer's digests ({SENT}) were received twice in one sync: send each tensor once"
                    )
                self._message = HostCopy(tensor)
            else:
                parameters.append((name, tensor))
        self._received.add_all(parameters)
        return parameters

    def prove(self) -> int:
        """Verify that all parameters arrived as they were sent, and return their number; waits for the device.

        Raises:
            RefitError: some parameters differ (named in the message); the trainer's digests are missing or cannot be
                read; or its fake quantization ignores other layers than this engine.
        """
        if not self._wanted:
            return 0
        if self._message is None:
            raise RefitError(
                f"the trainer's digests ({SENT}) were not received: send the weights through "
                "ascend_quant.transfer.checksums.sending, or disable checksums on both sides"
            )
        received = self._received.as_dict()  # waits for the device, so the message has arrived too
        sent = decode(self._message.read())
        compare(sent.digests, received)
        self._compare_unquantized(sent.unquantized)
        return len(sent.digests)

    def _compare_unquantized(self, trainer: Unquantized | None) -> None:
        """Raise RefitError if a trainer of this scheme ignores other layers; a run's settings check other schemes."""
        if trainer is None or self._unquantized is None or trainer.scheme != self._unquantized.scheme:
            return
        if faults := self._unquantized.differences(trainer):
            more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
            raise RefitError(
                "the trainer's fake quantization and this engine ignore different layers (digests "
                f"{trainer.digest} and {self._unquantized.digest}): {'; '.join(faults[:SHOWN])}{more}. Use "
                "the same list of ignored layers for both"
            )
