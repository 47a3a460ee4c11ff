"""The serving state of an engine: it may serve after a closed refit, while its weights are unchanged and awake.

    loading --> ready <--> open
                  ^          |
                  '- open <- failed

While a refit is open, or after one that failed, the weights are a mixture of two steps (a partial update). The next
complete refit repairs it.

Any code with a reference to a parameter can bypass the refit. Only the bytes and addresses reveal this, since
`_version` does not count writes through `.data`, `torch._foreach_*`, `out=`, numpy, dlpack or a storage. So both are
compared with those of the last refit before a request is served: all bytes (`look`) if foreign code may have written to
them, otherwise addresses and some rows (`glance`). These checks do not detect

* in `glance`: a write outside of the sampled rows, and one while requests run;
* in either: tensors that are derived from weights (copies of scales, buffers, absorbed weights of latent attention), a
  drafter's weights, another view of a parameter's own memory, bytes with an equal digest;
* a write of a thread that continues after its call has returned, and any write before the first refit of dummy weights.
"""

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Protocol

import torch

from ascend_quant.kernels import kernels_for
from ascend_quant.oracle import add_digests
from ascend_quant.refit.check import Check
from ascend_quant.refit.code_snapshot import CodeSnapshot
from ascend_quant.refit.receipt import Receipt
from ascend_quant.refit.resident import ResidentWeight
from ascend_quant.refit.samples import Samples
from ascend_quant.transfer.errors import RefitError, refusal

logger = logging.getLogger(__name__)

HEAL = "complete one full refit to repair it"
SHOWN = 4  # names that one message lists


class Parameters(Protocol):
    """The parameters of an engine, by their addresses."""

    def moved(self) -> list[str]:
        """Return the names of parameters that are no longer in the memory that refits write."""
        ...

    def put_back(self) -> None:
        """Restore the engine's parameters to the memory that refits write."""


class ServingState:
    """The state of one engine worker's weights.

    Args:
        residents: every parameter of the model, once, all on one device.
        checks: the checks of its refits, in calling order.
        parameters: the engine's parameters; None without an engine that could replace them.
        still: whether only refits write the residents (false if experts move between ranks).

    Attributes:
        unseen: whether the resident bytes were restored after a sleep, or other code may have written them; they must
            be checked before a request is served.
        last_receipt: the receipt of the last closed refit.
    """

    def __init__(
        self,
        residents: Sequence[ResidentWeight],
        checks: Sequence[Check] = (),
        parameters: Parameters | None = None,
        still: bool = True,
    ):
        self.residents, self.checks = list(residents), list(checks)
        self._parameters, self._still = parameters, still
        self._glances = True  # whether a refit records the bytes for `glance`: the first one does
        self._noted: torch.Tensor | None = None
        self.last_receipt: Receipt | None = None
        self.unseen = False
        self._state = "loading"
        self._why = f"its weights have not been loaded yet; {HEAL}"
        self._asleep: int | None = None
        self._comparable = False  # whether the sampled rows contain the codes of the last closed refit
        self._former: CodeSnapshot | None = None  # copies of these rows, if the sleep does not keep them

    @property
    def is_open(self) -> bool:
        return self._state == "open"

    @property
    def has_failed(self) -> bool:
        return self._state == "failed"

    def look(self) -> None:
        """Check bytes that may have changed, unless that was done; if they have, the engine refuses to generate.

        This reads all bytes and waits for the device. It is deferred until a request arrives, since a trainer that
        wakes an engine up often overwrites the weights at once.
        """
        if self._is_unseen:
            with suppress(RefitError):
                self.verify()
        if not self.weights_sleep:
            for one in self.checks:
                one.look()

    @property
    def is_to_be_looked_at(self) -> bool:
        """True if `look` has anything to check."""
        return self._is_unseen or any(one.needs_look for one in self.checks)

    @property
    def _is_unseen(self) -> bool:
        return self.unseen and self._state == "ready" and not self.weights_sleep

    def may_have_been_written(self) -> None:
        """Record that other code has had access to the model, perhaps while a refit was open."""
        self.unseen |= self._still

    def glance(self) -> None:
        """Check addresses and sampled bytes; called for requests to an idle engine whose writes no call reports.

        This waits for the device. From the first call on, refits record these bytes, which takes the same amount of
        device memory; weights of an earlier refit are checked completely.
        """
        if self._state != "ready" or self.weights_sleep or self._is_unseen or not self._still:
            return
        self._glances = True
        with suppress(RefitError), self.failing():
            self.check_addresses()
            if self._noted is None:
                self.unseen = self.last_receipt is not None
            elif not torch.equal(self._noted, self._samples.bytes()):
                raise self._written_past()

    @cached_property
    def _samples(self) -> Samples:
        return Samples(self.residents)

    def _written_past(self) -> RefitError:
        names = [] if self._noted is None else self._samples.differing(self._noted)
        which = f"of {', '.join(names[:SHOWN])}{' and others' if len(names) > SHOWN else ''} " if names else ""
        return RefitError(f"resident weights {which}changed outside a refit; write them through model.load_weights")

    def check_addresses(self) -> None:
        """Raise RefitError if the engine's parameters are no longer in the memory that refits write."""
        if self._parameters is not None and (moved := self._parameters.moved()):
            more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
            raise RefitError(f"{moved[0]}{more} moved to another buffer; write weights through model.load_weights")

    def put_back(self) -> None:
        """Restore the addresses that `check_addresses` reports; the next refit writes the bytes."""
        if self._parameters is not None:
            self._parameters.put_back()

    def why_not_servable(self) -> str | None:
        """Return why the engine must not generate, as far as is known, and the fix; None if it may: see `look`."""
        if self._asleep is not None:
            return f"it is asleep (level {self._asleep}); wake it up"
        if self._state != "ready":
            return self._why
        return next(filter(None, (one.why_not_servable() for one in self.checks)), None)

    def require_servable(self) -> None:
        """Raise RefitError unless the last refit closed cleanly and its bytes are unchanged."""
        self.look()
        if why := self.why_not_servable():
            raise RefitError(refusal(why))

    @contextmanager
    def failing(self) -> Generator[None]:
        """Context that fails the refit, once, if an exception passes through; the exception is raised again."""
        try:
            yield
        except BaseException as error:
            if self._state != "failed":
                self.fail(error)
            raise

    def opened(self) -> bool:
        """Begin a refit that will write all weights; return whether it can be compared with the last one."""
        compares, self._comparable = self._comparable, False
        self._state, self._why, self.unseen = "open", f"a refit is open; {HEAL}", False
        return compares

    def closed(self, receipt: Receipt) -> None:
        """Mark the refit as complete: it has written all weights, and nothing else has written to them."""
        self._noted = self._samples.bytes() if self._glances else None
        self._glances = self._glances and self.last_receipt is not None
        self.last_receipt = receipt
        self._state, self._comparable = "ready", True

    def fail(self, error: BaseException) -> None:
        """Mark the refit as failed: the engine refuses to generate until the next complete one."""
        self._state, self._why, self._comparable = "failed", f"its last refit failed ({error}); {HEAL}", False
        logger.error("refit failed, the engine refuses to generate: %s", error)

    def falls_asleep(self, level: int) -> None:
        """Prepare for sleep: level 2 discards the quantized rows with which the next refit is compared."""
        if level > 1 and self._asleep is None and self._comparable and not self.is_open:
            self._former = CodeSnapshot.of(self.residents)

    def slept(self, level: int) -> None:
        """Record that the engine sleeps: its weights are in host memory (level 1) or discarded (level 2)."""
        if self.is_open:
            self.fail(RefitError("the engine went to sleep while the refit was open"))
        self.unseen = False
        self._asleep = max(level, self._asleep or 0)

    def woke(self, tags: Sequence[str] | None) -> None:
        """Record that the engine woke up, with its weights if `tags` is None or has them; they are checked later."""
        if self._asleep is None or (tags is not None and "weights" not in tags):
            return
        level, self._asleep = self._asleep, None
        if level > 1:
            self._state, self._why = "failed", f"sleep level {level} discarded its weights; {HEAL}"
            former, self._former = self._former, None
            self._comparable = former is not None and former.put_back()
        else:
            self.unseen = self._state == "ready" and self.last_receipt is not None

    @property
    def weights_sleep(self) -> bool:
        """True if the memory of the weights, and of everything allocated with them, must not be accessed."""
        return self._asleep is not None

    def cache_woke(self) -> None:
        """Handle a wake-up, perhaps of the KV cache; the buffers of checks are in the memory of the weights, and may
        still be asleep."""
        if not self.weights_sleep:
            for one in self.checks:
                one.cache_woke()

    def digest(self) -> str:
        """Return the checksum of all resident bytes, read back: 16 hex digits."""
        pairs = [pair for resident in self.residents for pair in resident.tensors() if 0 not in pair[0].shape]
        kernels = kernels_for(self.residents[0].tensor.device)
        found = kernels.read_digests([kernels.digests([tensor for tensor, _ in pairs])])
        return f"{add_digests(*found, weights=[weight for _, weight in pairs]):016x}"

    def verify(self) -> None:
        """Check that the resident bytes are those of the last receipt, and the engine's parameters.

        Raises:
            RefitError: other code wrote to the weights (the engine then refuses to generate).
        """
        if self._state != "ready":
            return
        self.unseen = False
        with self.failing():
            self.check_addresses()
            if self.last_receipt and self.digest() != self.last_receipt.digest:
                raise self._written_past()
        if self._glances and self._noted is None:
            self._noted = self._samples.bytes()
