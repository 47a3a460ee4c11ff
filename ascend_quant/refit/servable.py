"""Whether an engine may serve: after a refit that closed, while its bytes are there and awake.

    loading --> ready <--> open
                  ^          |
                  '- open <- failed

While a refit is open, or after one that failed, the weights are a mixture of two steps. The next complete one heals it.
"""

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from ascend_quant.kernels import kernels_for
from ascend_quant.oracle import add_digests
from ascend_quant.refit.errors import RefitError, Replaced, refusal
from ascend_quant.refit.former_codes import FormerCodes
from ascend_quant.refit.kv_scales import KvScales
from ascend_quant.refit.receipt import Receipt
from ascend_quant.refit.resident import ResidentWeight

logger = logging.getLogger(__name__)

HEAL = "complete one full refit to heal it"


class Servable:
    """The state of one engine worker's weights.

    Args:
        residents: every parameter of the model, each once, all on one device.
        kv_scales: of a KV cache that has one a layer; None of one without.

    Attributes:
        unseen: whether the resident bytes came back from a sleep, and are to be looked at before a request is served.
        last_receipt: of the last refit that closed.
    """

    def __init__(self, residents: Sequence[ResidentWeight], kv_scales: KvScales | None):
        self.residents, self.kv_scales = list(residents), kv_scales
        self.last_receipt: Receipt | None = None
        self.unseen = False
        self._state = "loading"
        self._why = f"its weights have not been loaded yet; {HEAL}"
        self._asleep: int | None = None
        self._comparable = False  # whether the sampled rows hold the codes of the last refit that closed
        self._former: FormerCodes | None = None  # these rows, where the sleep does not keep them

    @property
    def is_open(self) -> bool:
        return self._state == "open"

    @property
    def has_failed(self) -> bool:
        return self._state == "failed"

    def look(self) -> None:
        """Look at bytes that came back from a sleep, if nobody has: an engine whose bytes changed refuses to generate.

        It reads all of them and waits for the device. It is put off until a request comes, since a trainer that wakes
        an engine up often overwrites them at once. An engine that may not serve then says why.
        """
        if self.unseen:
            with suppress(RefitError):
                self.verify()
        if self.kv_scales is not None and not self.weights_sleep:
            self.kv_scales.look()

    @property
    def is_to_be_looked_at(self) -> bool:
        """Whether `look` has something to do."""
        return self.unseen or (self.kv_scales is not None and self.kv_scales.unseen)

    def why_not_servable(self) -> str | None:
        """Why the engine must not generate, as far as is known, and what helps; None when it may: see `look`."""
        if self._asleep is not None:
            return f"it sleeps (level {self._asleep}); wake it up"
        if self._state != "ready":
            return self._why
        return None if self.kv_scales is None else self.kv_scales.why_not_servable()

    def require_servable(self) -> None:
        """Raise RefitError unless the last refit closed cleanly and its bytes are still there."""
        self.look()
        if why := self.why_not_servable():
            raise RefitError(refusal(why))

    @contextmanager
    def failing(self) -> Generator[None]:
        """An exception inside fails the refit, once, and goes on."""
        try:
            yield
        except BaseException as error:
            if self._state != "failed":
                self.fail(error)
            raise

    def opened(self) -> bool:
        """A refit begins, that will write all; whether it can be compared with the last one."""
        compares, self._comparable = self._comparable, False
        self._state, self._why, self.unseen = "open", f"a refit is open; {HEAL}", False
        return compares

    def closed(self, receipt: Receipt) -> None:
        """The refit has written all, and nothing else has."""
        self.last_receipt = receipt
        self._state, self._comparable = "ready", True

    def fail(self, error: BaseException) -> None:
        """Mark the refit as failed: the engine refuses to generate until the next complete one."""
        cure = "no refit heals that: restart it" if isinstance(error, Replaced) else HEAL
        self._state, self._why, self._comparable = "failed", f"its last refit failed ({error}); {cure}", False
        logger.error("refit failed, the engine refuses to generate: %s", error)

    def falls_asleep(self, level: int) -> None:
        """The engine is about to sleep: level 2 will discard the codes that the next refit is compared with."""
        if level > 1 and self._asleep is None and self._comparable and not self.is_open:
            self._former = FormerCodes.of(self.residents)

    def slept(self, level: int) -> None:
        """The engine went to sleep: its weights are in host memory (level 1) or gone (level 2)."""
        if self.is_open:
            self.fail(RefitError("the engine went to sleep while the refit was open"))
        self.unseen = False
        self._asleep = max(level, self._asleep or 0)

    def woke(self, tags: Sequence[str] | None) -> None:
        """The engine woke up, its weights too if `tags` is None or names them; they are yet to be looked at."""
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
        """Whether the memory of the weights, and of all that was allocated with them, is not to be touched."""
        return self._asleep is not None

    def cache_woke(self) -> None:
        """The engine woke up, perhaps its KV cache, with which vLLM sets all scales to 1; not while the weights sleep,
        as their memory holds the scales too."""
        if self.kv_scales is not None and not self.weights_sleep:
            self.kv_scales.write()

    def digest(self) -> str:
        """Fingerprint of all resident bytes, read back: 16 hex digits."""
        pairs = [pair for resident in self.residents for pair in resident.tensors() if 0 not in pair[0].shape]
        kernels = kernels_for(self.residents[0].tensor.device)
        found = kernels.read_digests([kernels.digests([tensor for tensor, _ in pairs])])
        return f"{add_digests(*found, weights=[weight for _, weight in pairs]):016x}"

    def verify(self) -> None:
        """Check that the resident bytes are those of the last receipt.

        Raises:
            RefitError: something wrote past the refit (the engine then refuses to generate).
        """
        self.unseen = False
        if self._state == "ready" and self.last_receipt and self.digest() != self.last_receipt.digest:
            with self.failing():
                raise RefitError("resident weights changed outside a refit; write them through model.load_weights")
