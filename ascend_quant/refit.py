"""A refit: one weight sync. Open, write shards in any order and bucketing, close; it yields a receipt.

    loading --> ready <--> open
                  ^          |
                  '- open <- failed

Only a ready engine may serve: while a refit is open, or after one that failed, its weights are a mixture of
two steps. The next complete refit heals it. Nothing here knows vLLM; engines feed `Refit` through adapters.
"""

import logging
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch

from ascend_quant.resident import RefitError, ResidentWeight

__all__ = ["Receipt", "Refit", "RefitError"]

logger = logging.getLogger(__name__)

SHOWN = 8  # names that one message lists


def refusal(why: str) -> str:
    """What a caller is told by an engine that may not serve."""
    return f"this engine refuses to generate: {why}; complete one full refit to heal it"


@dataclass(frozen=True)
class Receipt:
    """What one refit did.

    Attributes:
        number: 1 for the first load, counting up.
        tensors, bytes: received from the trainer or the checkpoint.
        milliseconds: from open to close.
        nonfinite: NaN and Inf elements seen; 0 in every receipt, since a refit that meets one fails.
        changed: fraction of quantized codes that differ from the previous refit's (0 if nothing is quantized).
        digest: fingerprint of all resident bytes, 16 hex digits (see `oracle.digest`).
    """

    number: int
    tensors: int
    bytes: int
    milliseconds: float
    nonfinite: int
    changed: float
    digest: str

    def as_metrics(self) -> dict[str, float]:
        """`refit/*` numbers for a training logger; the digest is cut to its low 32 bits."""
        numbers = {**asdict(self), "digest": int(self.digest, 16) % 2**32}
        return {f"refit/{name}": value for name, value in numbers.items()}


class Refit:
    """The refit state of one engine worker.

    Args:
        residents: every parameter of the model, each once.
        buffer_of: the engine's present buffer of a parameter, to see that none was replaced.
    """

    def __init__(self, residents: Sequence[ResidentWeight], buffer_of: Callable[[str], torch.Tensor] | None = None):
        self.residents = list(residents)
        self._buffer_of = buffer_of or {resident.name: resident.data for resident in residents}.__getitem__
        self.last_receipt: Receipt | None = None
        self._state = "loading"
        self._why = "its weights have not been loaded yet"
        self._explicit = False
        self._started = 0.0
        self._tensors = self._bytes = self._count = 0

    @property
    def is_open(self) -> bool:
        return self._state == "open"

    def why_not_servable(self) -> str | None:
        """Why the engine must not generate now; None when it may."""
        return None if self._state == "ready" else self._why

    def require_servable(self) -> None:
        """Raise RefitError unless the last refit closed cleanly."""
        if why := self.why_not_servable():
            raise RefitError(refusal(why))

    @contextmanager
    def session(self) -> Iterator["Refit"]:
        """Open, run the body, close; an exception in the body fails the refit and goes on."""
        self.open()
        with self.failing():
            yield self
            self.close()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """An exception inside fails the refit, once, and goes on."""
        try:
            yield
        except BaseException as error:
            if self._state != "failed":
                self.fail(error)
            raise

    def open(self, explicit: bool = True) -> None:
        """Begin a refit. An implicit one (a bare load_weights call) closes by itself once it is complete."""
        if self.is_open and self._explicit:
            raise RefitError("a refit is already open on this engine; close it before opening the next")
        for resident in self.residents:
            resident.begin()
        self._state, self._why, self._explicit = "open", "a refit is open", explicit
        self._started = time.perf_counter()
        self._tensors = self._bytes = 0

    def count(self, tensors: int, nbytes: int) -> None:
        """Account for received tensors."""
        self._tensors += tensors
        self._bytes += nbytes

    def missing(self) -> list[str]:
        """Checkpoint names of what this refit has not written yet."""
        return [part for resident in self.residents for part in resident.missing()]

    def close_if_complete(self) -> None:
        """Close an implicit refit whose last shard has arrived."""
        if self.is_open and not self._explicit and not any(resident.unwritten for resident in self.residents):
            self.close()

    def settle_implicit(self) -> bool:
        """Close an implicit refit, complete or not (vLLM's post-load pass); True if a refit is or was open."""
        was_open = self.is_open
        if was_open and not self._explicit:
            self.close()
        return was_open

    def close(self) -> Receipt:
        """End the refit: everything must have been written, and nothing may have moved.

        Raises:
            RefitError: naming the parameters; the engine then refuses to generate.
        """
        if not self.is_open:
            raise RefitError("no refit is open on this engine; open one first")
        with self.failing():
            if missing := self.missing():
                more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
                raise RefitError(f"{len(missing)} missing from this refit: {', '.join(missing[:SHOWN])}{more}")
            for resident in self.residents:
                if self._buffer_of(resident.name).data_ptr() != resident.data.data_ptr():
                    raise RefitError(f"{resident.name} was moved to another buffer; captured graphs read the old one")
        self._count += 1
        self.last_receipt = self._receipt()
        self._state = "ready"
        logger.info("%s", self.last_receipt)
        return self.last_receipt

    def fail(self, error: BaseException) -> None:
        """Mark the refit as failed: the engine refuses to generate until the next complete one."""
        self._state, self._why = "failed", f"its last refit failed ({error})"
        logger.error("refit failed, the engine refuses to generate: %s", error)

    def accept_dummy(self) -> None:
        """Serve whatever is in the buffers: the user asked for dummy weights."""
        self._state = "ready"

    def digest(self) -> str:
        """Fingerprint of all resident bytes, 16 hex digits."""
        total = sum(resident.digest() * (2 * zlib.crc32(resident.name.encode()) + 1) for resident in self.residents)
        return f"{total % 2**64:016x}"

    def verify(self) -> None:
        """Check that the resident bytes are those of the last receipt.

        Raises:
            RefitError: something wrote past the refit (the engine then refuses to generate).
        """
        if self._state == "ready" and self.last_receipt and self.digest() != self.last_receipt.digest:
            with self.failing():
                raise RefitError("resident weights changed outside a refit; write them through model.load_weights")

    def _receipt(self) -> Receipt:
        codes = sum(resident.codes for resident in self.residents)
        changed = sum(resident.changed for resident in self.residents if resident.codes)
        digest = self.digest()
        milliseconds = 1e3 * (time.perf_counter() - self._started)
        fraction = changed / codes if codes else 0.0
        return Receipt(self._count, self._tensors, self._bytes, milliseconds, 0, fraction, digest)
