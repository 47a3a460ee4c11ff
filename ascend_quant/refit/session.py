"""A refit session applies one weight sync: open, write shards in any order and bucketing, close; it returns a receipt.
serving_state.py decides when an engine may serve.

`Refit` does not depend on an engine; integrations call it.

Writes are collected in a batch and started by `flush`; on an accelerator nothing waits for them before `close`.
A tensor that an earlier refit has recorded is written by plan (`place`), any other through the engine's loader
(`write`, `record`).
"""

import logging
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

import torch

from ascend_quant.kernels.writes import RowWrite
from ascend_quant.refit.batch import Batch
from ascend_quant.refit.check import Check
from ascend_quant.refit.plan import Entry, Plan, edges_of
from ascend_quant.refit.receipt import Receipt
from ascend_quant.refit.received import Received, experts_one_by_one
from ascend_quant.refit.resident import ResidentWeight
from ascend_quant.refit.serving_state import Parameters, ServingState
from ascend_quant.schemes.layer_names import LeftOut, Unquantized
from ascend_quant.transfer.errors import RefitError
from ascend_quant.transfer.validate import NamedTensor, checked, sent_twice

logger = logging.getLogger(__name__)

SHOWN = 8  # names that one message lists


class Refit(ServingState):
    """The refit state of one engine worker.

    Args:
        residents: every parameter of the model, once, all on one device.
        parameters: the engine's parameters, to detect replaced ones.
        checks: called in every refit, in this order; a check that writes comes last, since nothing may fail after it.
        unquantized: unquantized layers, for receipts.
        plans: whether a tensor is written to the same rows in every refit (false if experts move between ranks).

    Attributes:
        stages: the checks through which `take` passes the tensors; without any, `take` is not needed.

    Raises:
        RefitError: there are no residents, or they are on several devices.
    """

    def __init__(
        self,
        residents: Sequence[ResidentWeight],
        parameters: Parameters | None = None,
        checks: Sequence[Check] = (),
        unquantized: Unquantized = Unquantized("bf16"),  # noqa: B008  frozen
        plans: bool = True,
    ):
        super().__init__(residents, checks, parameters, plans)
        self.unquantized = unquantized
        if not self.residents:
            raise RefitError("a refit needs at least one resident weight: pass every parameter of the model")
        devices = {str(resident.tensor.device): resident.name for resident in self.residents}
        if len(devices) > 1:
            where = ", ".join(f"{name} on {device}" for device, name in devices.items())
            raise RefitError(f"the weights are on several devices ({where}); turn weight offloading off")
        self._told = LeftOut()
        self._explicit = False
        self._plans = plans
        self.stages = [one.take for one in self.checks if type(one).take is not Check.take]
        if any(resident.of_tensors for resident in self.residents):  # each expert has its own scale
            self.stages.append(experts_one_by_one)
        self.plan = Plan()
        self._batch: Batch | None = None
        self._started, self._count = 0.0, 0
        self.received = Received()

    @property
    def batch(self) -> Batch:
        """The writes of the open refit; RefitError if none is open."""
        if self._batch is None:
            raise RefitError("no refit is open on this engine; open one first")
        return self._batch

    @property
    def cache_since(self) -> int:
        """The number of the last refit that changed how the KV cache is read; 0 for none."""
        return max((one.cache_since for one in self.checks), default=0)

    @contextmanager
    def session(self) -> Generator["Refit"]:
        """Open a refit, run the body, and close it; an exception in the body fails the refit and is raised again."""
        self.open()
        with self.failing():
            yield self
            self.close()

    def open(self, explicit: bool = True) -> None:
        """Begin a refit. An implicit one (a bare load_weights call) closes by itself once it is complete."""
        if self.weights_sleep:
            raise RefitError("this engine is asleep and its weights are not in memory; wake up the weights, then refit")
        if self.is_open and self._explicit:  # the second of two concurrent weight updates is refused
            raise RefitError("a refit is already open on this engine; close it before opening the next")
        self.put_back()
        for begun in (*self.residents, *self.checks):
            begun.begin()
        self._batch = Batch(self.residents[0].tensor.device, sparing=self.last_receipt is None)
        self._by_plan, self._learnt = bool(self.plan.entries), False
        self._entries: dict[str, Entry] = {}
        self._edges: set[tuple[ResidentWeight, int]] = set()
        self._skipped: set[str] = set()
        self._compares, self._explicit = self.opened(), explicit
        self._started, self.received = time.perf_counter(), Received()

    def take(self, weights: Iterable[NamedTensor]) -> Iterable[NamedTensor]:
        """Return the tensors to be written; those that a check keeps or changes are counted as they were sent."""
        weights = checked(weights)
        for stage in self.stages:
            weights = stage(weights, self.received)
        return weights

    def place(self, weights: Sequence[NamedTensor]) -> Sequence[NamedTensor]:
        """Queue the planned writes of the tensors of one call; return those that must go through the engine's loader.

        Raises:
            RefitError: a tensor has no values in memory, or was sent twice in this refit; no refit is open.
        """
        batch = self.batch
        if not (self._by_plan and weights):
            return list(checked(weights))
        found = self.plan.call(weights)
        if found is None:
            self._leave_plan([name for name, _ in weights])
            return list(checked(weights))
        call, addresses = found
        if not self._entries.keys().isdisjoint(call.names):
            raise sent_twice(next(name for name in call.names if name in self._entries))
        self._entries |= call.entries
        self._skipped.update(call.skipped)
        batch.add(call.writes, call.sources, [weights[i][1] for i in call.taken], addresses)
        for resident, rows in call.rows.items():
            resident.unwritten -= rows
        self._edges |= call.edges
        self.received.count(call.tensors, call.bytes)
        return [weights[i] for i in call.rest]

    def write(
        self,
        slot: int,
        resident: ResidentWeight,
        view: torch.Tensor,
        shard: torch.Tensor,
        whole: torch.Tensor | None = None,
        base: torch.Tensor | None = None,
        skip_bf16_cast: bool = False,
        static_scale: torch.Tensor | None = None,
        prequantized: bool = False,
    ) -> list[RowWrite]:
        """Queue the writes of `shard` into `view`, which consists of whole rows of `resident`.

        Args:
            slot: the tensor's slot from `batch.new_sources`; two tensors may not write the same rows.
            whole: the complete rows of which `shard` is a slice; None if it is no slice.
            base: the tensor of which `shard` is a view, and to which the writes are relative.
            skip_bf16_cast, static_scale, prequantized: see `ResidentWeight.writes`.

        Raises:
            RefitError: see `ResidentWeight.writes`.
        """
        base = shard if base is None else base
        writes = resident.writes(view, shard, whole, slot, base, skip_bf16_cast, static_scale, prequantized)
        for write in writes:
            self.batch.add_single(write, base, slot)
        self._edges |= edges_of(resident, writes)
        return writes

    def record(self, name: str, entry: Entry) -> None:
        """Record to which rows a loader wrote a tensor, for the plan of later refits."""
        known = self.plan.entries.get(name)
        if not (known and known.by_loader and entry.by_loader):
            self._learnt = True
        self._entries[name] = entry
        if entry.skipped:
            self._skipped.add(name)

    def _leave_plan(self, names: Sequence[str]) -> None:
        """Continue without the plan; its rows are marked as written first, so that a second write is detected."""
        name = next(name for name in names if name not in self.plan.entries)
        logger.info(
            "%s is not in the plan of the last refit: the remaining tensors go through vLLM's weight loaders", name
        )
        self._by_plan = False
        for entry in self._entries.values():
            if not entry.by_loader:
                for resident, write in entry.writes:
                    resident.mark(write)

    def missing(self) -> list[str]:
        """Return the checkpoint names of tensors that this refit has not written yet."""
        if self._by_plan:
            return [
                name for name, entry in self.plan.entries.items() if not entry.is_matched_by(self._entries.get(name))
            ]
        return [part for resident in self.residents for part in resident.missing()]

    def close_if_complete(self) -> None:
        """Close an implicit refit after its last shard."""
        if self.is_open and not self._explicit and not any(resident.unwritten for resident in self.residents):
            self.close()

    def settle_implicit(self) -> bool:
        """Close an implicit refit, complete or not (an engine's post-load pass); True if a refit is or was open."""
        was_open = self.is_open
        if was_open and not self._explicit:
            self.close()
        return was_open

    @torch.no_grad()
    def close(self) -> Receipt:
        """End the refit: everything must have been written, and no buffer may have moved.

        Raises:
            RefitError: a check failed; the message names the parameters, and the engine refuses to generate.
        """
        if not self.is_open:
            raise RefitError("no refit is open on this engine; open one first")
        with self.failing():
            self.batch.flush()
            self._write_edges()
            for one in self.checks:
                one.transform()
            for resident in self.residents:
                resident.refresh()
            self._derive()
            self.check_addresses()  # while the device works
            changed, clamped, digest = self.batch.finish()
            self._check_complete()
            for one in self.checks:
                one.check(self._entries)
            for one in self.checks:
                digest = one.settle(self._count + 1, digest)
            if any(resident.recount for resident in self.residents):
                digest = int(self.digest(), 16)
        self._count += 1
        receipt = self._receipt(changed, clamped, digest)
        self._batch = None
        if self._plans and (self._learnt or len(self._entries) != len(self.plan.entries)):
            self.plan = Plan(self._entries)
        self.closed(receipt)
        logger.info("%s", receipt)
        return receipt

    def _derive(self) -> None:
        for one in self.checks:
            one.derive()

    def _write_edges(self) -> None:
        """Quantize the blocks that span several tensors."""
        for resident, first_row in self._edges:
            write, source = resident.edge_write(first_row)
            self.batch.add_single(write, source, self.batch.new_sources([(resident.name, source.numel())]))
        self.batch.flush()

    def _check_complete(self) -> None:
        """Raise RefitError, naming checkpoint tensors, if rows have not been written."""
        if any(resident.unwritten for resident in self.residents):
            missing = self.missing()
            more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
            raise RefitError(f"{len(missing)} missing from this refit: {', '.join(missing[:SHOWN])}{more}")

    def fail(self, error: BaseException) -> None:
        """Mark the refit as failed: the engine refuses to generate until the next complete one."""
        super().fail(error)
        self._batch = None  # drops the references to the sender's memory

    def accept_dummy(self) -> None:
        """Accept the current buffers as valid, since the user requested dummy weights."""
        self._derive()
        self._state = "ready"

    def _receipt(self, changed: int, clamped: int, digest: int) -> Receipt:
        compared = sum(resident.sampled for resident in self.residents)
        fraction = changed / max(compared, 1) if self._compares else None
        milliseconds, kernel_ms = 1e3 * (time.perf_counter() - self._started), self.batch.clock.milliseconds()
        numbers = self._count, self.received.tensors, self.received.bytes, milliseconds, kernel_ms, 0, clamped, fraction
        reports = {one.name: one.report for one in self.checks if one.report is not None}
        return Receipt(*numbers, self.unquantized, f"{digest:016x}", self._left_out(), reports)

    def _left_out(self) -> LeftOut:
        """Return the tensors that were skipped by design; their names are logged once, and again when they change."""
        found = LeftOut(tuple(sorted(self._skipped)))
        if found.names and found != self._told:
            names = ", ".join(found.names)
            logger.info("%d tensors are skipped, as in the engine's own weight loading: %s", len(found.names), names)
        self._told = found
        return found
