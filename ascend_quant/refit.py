"""A refit: one weight sync. Open, write shards in any order and bucketing, close; it yields a receipt.

    loading --> ready <--> open
                  ^          |
                  '- open <- failed

Only a ready engine may serve: while a refit is open, or after one that failed, its weights are a mixture of
two steps. The next complete refit heals it. Nothing here knows vLLM; engines feed `Refit` through adapters.

Writes are collected in a batch and started by `flush`; on an accelerator nothing waits for them before `close`.
A tensor whose way was learnt in an earlier refit is placed by plan (`place`), any other by the engine's loader
(`write`, `record`).
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

import torch

from ascend_quant.batch import Batch, RefitError
from ascend_quant.former_codes import FormerCodes
from ascend_quant.kernels import kernels_for
from ascend_quant.kernels.moves import Move
from ascend_quant.oracle import add_digests, last_dimension
from ascend_quant.plan import Entry, NamedTensor, Plan, edges_of, sent_twice
from ascend_quant.resident import ResidentWeight
from ascend_quant.smoothing import Smoothing
from ascend_quant.stacks import one_by_one

__all__ = ["Receipt", "Refit", "RefitError"]

logger = logging.getLogger(__name__)

SENT_AS = (torch.bfloat16, torch.float32)  # by trainers
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
        milliseconds: from open to close, on the host's clock: waiting for the trainer's tensors is a part of it.
        kernel_ms: of these, what the refit's own kernels took, see `kernels.clock`.
        nonfinite: NaN and Inf elements seen; 0 in every receipt, since a refit that meets one fails.
        clamped: codes lost to clamping: what a frozen scale makes of them is outside [-128, 127]; 0 where every row has
            a scale of its own.
        changed: fraction of the quantized codes of every 64th row that differ from the previous refit's (0 if nothing
            is quantized): reading all former codes would cost a third of the refit. None where it is unknown: there
            is no previous refit (the first load), or the buffers do not hold its codes any more (a refit failed since;
            a sleep discarded them and they could not be kept, see former_codes.py).
        digest: fingerprint of all resident bytes, 16 hex digits (see `oracle.digest`).
    """

    number: int
    tensors: int
    bytes: int
    milliseconds: float
    kernel_ms: float
    nonfinite: int
    clamped: int
    changed: float | None
    digest: str

    def as_metrics(self) -> dict[str, float]:
        """`refit/*` numbers for a training logger, what is unknown left out; the digest is cut to its low 32 bits."""
        numbers = {**asdict(self), "digest": int(self.digest, 16) % 2**32}
        return {f"refit/{name}": value for name, value in numbers.items() if value is not None}


class Refit:
    """The refit state of one engine worker.

    Args:
        residents: every parameter of the model, each once, all on one device.
        buffer_of: the engine's present buffer of a parameter, to see that none was replaced.
        plans: whether a tensor goes the same way in every refit (not so where experts move between ranks).
        smoothing: a profile's, which all tensors pass first; None without a profile.
        derive: brings up to date what the engine derives from weights, where it cannot do without.
    """

    def __init__(
        self,
        residents: Sequence[ResidentWeight],
        buffer_of: Callable[[str], torch.Tensor] | None = None,
        plans: bool = True,
        smoothing: Smoothing | None = None,
        derive: Callable[[], None] = lambda: None,
    ):
        self._derive = derive
        self.residents = list(residents)
        devices = {str(resident.tensor.device): resident.name for resident in self.residents}
        if len(devices) > 1:
            where = ", ".join(f"{name} on {device}" for device, name in devices.items())
            raise RefitError(f"the weights are on several devices ({where}); turn weight offloading off")
        self._buffer_of = buffer_of or {resident.name: resident.tensor for resident in residents}.__getitem__
        self.last_receipt: Receipt | None = None
        self._state = "loading"
        self._why = "its weights have not been loaded yet"
        self._explicit = False
        self._asleep: int | None = None
        self._comparable = False  # whether the sampled rows hold the codes of the last refit that closed
        self._former: FormerCodes | None = None  # these rows, where the sleep does not keep them
        self._plans = plans
        self._of_tensors = any(resident.of_tensors for resident in self.residents)
        self.smoothing = smoothing
        self.plan = Plan()
        self.batch: Batch | None = None
        self._started = 0.0
        self._tensors = self._bytes = self._count = 0

    def prepare(self) -> float:
        """Have the kernels compiled that refits from tensors on the engine's device will need, and digests of these.

        Returns:
            Seconds.
        """
        device, start = self.residents[0].tensor.device, time.perf_counter()
        kernels_for(device).prepare(device, self._kinds_of_writes(), self._kinds_of_digests())
        return time.perf_counter() - start

    def _kinds_of_writes(self) -> Iterator[tuple[Move, torch.dtype]]:
        for resident in self.residents:
            if resident.row_count and resident.row_length:
                yield from ((resident.example(), dtype) for dtype in SENT_AS)
                if self.smoothing is not None and resident.codes:
                    yield resident.example(exact=True, frozen=self.smoothing.frozen), torch.float32

    def _kinds_of_digests(self) -> Iterator[tuple[torch.dtype, int]]:
        """Of what is sent (see proof.py), and of the resident tensors."""
        for resident in self.residents:
            yield from ((dtype, resident.whole_length) for dtype in SENT_AS)
            yield from ((t.dtype, last_dimension(t)) for t, _ in resident.tensors() if isinstance(t, torch.Tensor))

    @property
    def is_open(self) -> bool:
        return self._state == "open"

    def why_not_servable(self) -> str | None:
        """Why the engine must not generate now; None when it may."""
        if self._asleep is not None:
            return f"it sleeps (level {self._asleep}); wake it up"
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
        if self._asleep is not None:
            raise RefitError("this engine sleeps: its weights are not in memory; wake up its weights, then refit")
        if self.is_open and self._explicit:
            raise RefitError("a refit is already open on this engine; close it before opening the next")
        for resident in self.residents:
            resident.begin()
        if self.smoothing is not None:
            self.smoothing.begin()
        self.batch = Batch(self.residents[0].tensor.device)
        self._by_plan, self._entries, self._learnt = bool(self.plan.entries), {}, False
        self._edges: set[tuple[ResidentWeight, int]] = set()
        self._state, self._why, self._explicit = "open", "a refit is open", explicit
        self._compares, self._comparable = self._comparable, False
        self._started = time.perf_counter()
        self._tensors = self._bytes = 0

    def count(self, tensors: int, nbytes: int) -> None:
        """Account for received tensors."""
        self._tensors += tensors
        self._bytes += nbytes

    def smoothed(self, weights: Iterable[NamedTensor]) -> Iterable[NamedTensor]:
        """The tensors as the profile has them, one at a time; they are counted as they were sent.

        Experts of a stack come one by one if each has a scale of its own.
        """
        if self._of_tensors:
            return self._apart(weights)
        return weights if self.smoothing is None else self.smoothing.through(weights, self._counted_once)

    def _apart(self, weights: Iterable[NamedTensor]) -> Iterable[NamedTensor]:
        if isinstance(weights, (list, tuple)) and all(tensor.dim() < 3 for _, tensor in weights):
            return weights
        return self._one_by_one(weights)

    def _one_by_one(self, weights: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
        for name, tensor in weights:
            with self._counted_once(tensor):
                yield from one_by_one(name, tensor)

    @contextmanager
    def _counted_once(self, sent: torch.Tensor) -> Iterator[None]:
        """Inside, whatever is counted are parts of one tensor that was sent."""
        tensors, nbytes = self._tensors, self._bytes
        yield
        if self._tensors > tensors:
            self._tensors, self._bytes = tensors + 1, nbytes + sent.nbytes

    def place(self, weights: Sequence[NamedTensor]) -> Sequence[NamedTensor]:
        """Queue the writes of tensors that came together by plan; returns those that the engine's loader must take.

        Raises:
            RefitError: a name has been seen in this refit already.
        """
        if not self._by_plan:
            return weights
        found = self.plan.call(weights)
        if found is None:
            self._leave_plan([name for name, _ in weights])
            return weights
        call, addresses = found
        if not self._entries.keys().isdisjoint(call.names):
            raise sent_twice(next(name for name in call.names if name in self._entries))
        self._entries |= call.entries
        first = self.batch.new_sources(call.sources)
        self.batch.add(call.moves, [weights[i][1] for i in call.taken], addresses, first)
        for resident, rows in call.rows.items():
            resident.unwritten -= rows
        self._edges |= call.edges
        self.count(call.tensors, call.bytes)
        return [weights[i] for i in call.rest]

    def write(
        self,
        slot: int,
        resident: ResidentWeight,
        view: torch.Tensor,
        shard: torch.Tensor,
        whole: torch.Tensor | None = None,
        base: torch.Tensor | None = None,
        exact: bool = False,
        given: torch.Tensor | None = None,
    ) -> list[Move]:
        """Queue the writes of `shard` into `view`, whole rows of `resident`.

        Args:
            slot: from `batch.new_sources`, one a tensor: two tensors may not write the same rows.
            whole: the complete rows that `shard` is a slice of, if it is one.
            base: the tensor that `shard` is a view of, which the moves shall be relative to.
            exact, given: how it is quantized, see `ResidentWeight.moves`.

        Raises:
            RefitError: see `ResidentWeight.moves`.
        """
        base = shard if base is None else base
        moves = resident.moves(view, shard, whole, slot, base, exact, given)
        for move in moves:
            self.batch.add_single(move, base, slot)
        self._edges |= edges_of(resident, moves)
        return moves

    def record(self, name: str, entry: Entry) -> None:
        """Note where a loader put a tensor, for the plan of the next refits."""
        known = self.plan.entries.get(name)
        if not (known and known.by_loader and entry.by_loader):
            self._learnt = True
        self._entries[name] = entry

    def flush(self) -> None:
        """Start the queued writes; their sources may be overwritten once the device's stream has passed this point."""
        self.batch.flush()

    def _leave_plan(self, names: Sequence[str]) -> None:
        """Go on without the plan, whose rows are marked first, so that none is written twice unnoticed."""
        name = next(name for name in names if name not in self.plan.entries)
        logger.info("%s is not in the plan of the last refit: the rest of this one goes through the loaders", name)
        self._by_plan = False
        for entry in self._entries.values():
            if not entry.by_loader:
                for resident, move in entry.moves:
                    resident.mark(move)

    def missing(self) -> list[str]:
        """Checkpoint names of what this refit has not written yet."""
        if self._by_plan:
            return [
                name for name, entry in self.plan.entries.items() if not entry.is_matched_by(self._entries.get(name))
            ]
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
            self.flush()
            self._write_edges()
            for resident in self.residents:
                resident.refresh()
            self._derive()
            self._check_buffers()  # while the device works
            changed, clamped, digest = self.batch.finish()
            self._check_complete()
            if self.smoothing is not None:
                self.smoothing.check()
            if any(resident.recount for resident in self.residents):
                digest = int(self.digest(), 16)
        self._count += 1
        self.last_receipt = self._receipt(changed, clamped, digest)
        self.batch = None
        if self._plans and (self._learnt or len(self._entries) != len(self.plan.entries)):
            self.plan = Plan(self._entries)
        self._state, self._comparable = "ready", True
        logger.info("%s", self.last_receipt)
        return self.last_receipt

    def _write_edges(self) -> None:
        """Quantize the blocks that several tensors have a part in."""
        for resident, first_row in self._edges:
            move, source = resident.edge_move(first_row)
            self.batch.add_single(move, source, self.batch.new_sources([(resident.name, source.numel())]))
        self.flush()

    def _check_complete(self) -> None:
        if any(resident.unwritten for resident in self.residents):
            missing = self.missing()
            more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
            raise RefitError(f"{len(missing)} missing from this refit: {', '.join(missing[:SHOWN])}{more}")

    def _check_buffers(self) -> None:
        for resident in self.residents:
            if self._buffer_of(resident.name).data_ptr() != resident.tensor.data_ptr():
                raise RefitError(f"{resident.name} was moved to another buffer; captured graphs read the old one")

    def fail(self, error: BaseException) -> None:
        """Mark the refit as failed: the engine refuses to generate until the next complete one."""
        self._state, self._why, self._comparable = "failed", f"its last refit failed ({error})", False
        self.batch = None  # with it the references to the sender's memory
        logger.error("refit failed, the engine refuses to generate: %s", error)

    def accept_dummy(self) -> None:
        """Serve whatever is in the buffers: the user asked for dummy weights."""
        self._state = "ready"

    def falls_asleep(self, level: int) -> None:
        """The engine is about to sleep: level 2 will discard the codes that the next refit is compared with."""
        if level > 1 and self._asleep is None and self._comparable and not self.is_open:
            self._former = FormerCodes.of(self.residents)

    def slept(self, level: int) -> None:
        """The engine went to sleep: its weights are in host memory (level 1) or gone (level 2)."""
        if self.is_open:
            self.fail(RefitError("the engine went to sleep while the refit was open"))
        self._asleep = max(level, self._asleep or 0)

    def woke(self, tags: Sequence[str] | None) -> None:
        """The engine woke up, its weights too if `tags` is None or names them; it refuses to serve if they changed.

        Never raises: vLLM would take the engine for asleep still, and wake it up twice.
        """
        if self._asleep is None or (tags is not None and "weights" not in tags):
            return
        level, self._asleep = self._asleep, None
        if level > 1:
            self._state, self._why = "failed", f"sleep level {level} discarded its weights"
            former, self._former = self._former, None
            self._comparable = former is not None and former.put_back()
        else:
            with suppress(RefitError):
                self.verify()

    def digest(self) -> str:
        """Fingerprint of all resident bytes, read back: 16 hex digits."""
        pairs = [pair for resident in self.residents for pair in resident.tensors() if 0 not in pair[0].shape]
        kernels = kernels_for(self.residents[0].tensor.device)
        found = kernels.digests([tensor for tensor, _ in pairs]).tolist()
        return f"{add_digests(*(number % 2**64 for number in found), weights=[weight for _, weight in pairs]):016x}"

    def verify(self) -> None:
        """Check that the resident bytes are those of the last receipt.

        Raises:
            RefitError: something wrote past the refit (the engine then refuses to generate).
        """
        if self._state == "ready" and self.last_receipt and self.digest() != self.last_receipt.digest:
            with self.failing():
                raise RefitError("resident weights changed outside a refit; write them through model.load_weights")

    def _receipt(self, changed: int, clamped: int, digest: int) -> Receipt:
        compared = sum(resident.sampled for resident in self.residents)
        fraction = changed / max(compared, 1) if self._compares else None
        milliseconds, kernel_ms = 1e3 * (time.perf_counter() - self._started), self.batch.clock.milliseconds()
        numbers = self._count, self._tensors, self._bytes, milliseconds, kernel_ms, 0, clamped, fraction
        return Receipt(*numbers, f"{digest:016x}")
