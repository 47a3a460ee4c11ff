"""What a refit of a model costs on an NPU, as a page: counted over the project's own kernels.

On meta tensors. All layers are counted, none is scaled: buckets and chunks end where they do. The plan is known, tables
are warm, the fused operators are there. Of a first load, and of the chain without them, nothing is counted.
"""

from dataclasses import dataclass
from functools import cache

import pytest
import torch

from ascend_quant.kernels import npu
from ascend_quant.kernels.npu.refit import codes as npu_codes
from ascend_quant.kernels.npu.refit import write as npu_write
from ascend_quant.refit import batch
from ascend_quant.transfer import checksums, digests
from npu_host import cost_models, page
from npu_host.cost_counter import Cost, Counted

MODELS = {"7b": cost_models.DENSE, "30b-a3b": cost_models.MOE}
FORMATS = {"nz": True, "nd": False}
WAY = npu_codes.Way(npu_codes.absmax_by_norm, npu_codes.codes_fused, npu_codes.FUSED_ELEMENTS)
# What no change may exceed: a little above what is counted, below what was promised (150 calls and 300 views a layer
# of 7B and 24 bytes, 28 with the proof; 15,000 calls and 60,000 views of 30B-A3B; 2 waits a refit).
BUDGET = {  # calls and views of a whole refit; bytes an element with those that operators hide
    ("7b", False): (2_700, 4_400, 17.8),
    ("7b", True): (3_400, 6_200, 20.3),
    ("30b-a3b", False): (11_000, 25_500, 22.9),
    ("30b-a3b", True): (14_000, 31_500, 29.0),
}
WAITS = 2


@dataclass
class Entry:
    """One refit.

    Attributes:
        cost: in all, with the proof's part if it is on.
        peak, left: MiB of work space, and of what is kept until the refit closes.
    """

    model: str
    format: str
    proof: bool
    layers: int
    elements: int
    cost: Cost
    peak: float
    left: float

    def over_budget(self) -> list[str]:
        """What costs too much, in words."""
        ops, views, moved = BUDGET[self.model, self.proof]
        cost, found = self.cost, (self.cost.bytes + self.cost.hidden) / self.elements
        limits = [("calls", cost.ops, ops), ("views", cost.views, views), ("bytes an element", found, moved)]
        limits += [("waits", cost.waits, WAITS), ("copies to the device", cost.h2d, 0)]
        limits += [("calls of AICPU operators", cost.aicpu.total(), 0)]
        which = f"{self.model}, {self.format}, proof {'on' if self.proof else 'off'}"
        return [f"{which}: {is_:g} {what}, at most {most:g}" for what, is_, most in limits if is_ > most]


def entries_of(model: str, format_: str) -> list[Entry]:
    """Without the proof and with it."""
    sizes, nz = MODELS[model], FORMATS[format_]
    with pytest.MonkeyPatch.context() as patch:
        for module in (batch, digests):
            patch.setattr(module, "kernels_for", lambda device: npu)
        patch.setattr(npu_codes, "way_of", lambda device: WAY)
        with Counted():
            refit(cost_models.model_of(sizes, nz, layers=1))  # makes the tables
        counted, left, elements = _counted(sizes, nz)
        proved = _proof(sizes)
    return [
        Entry(model, format_, on, sizes.layers, elements, cost, counted.peak, left)
        for on, cost in ((False, counted.total), (True, counted.total + proved))
    ]


def _counted(sizes: cost_models.Sizes, nz: bool) -> tuple[Counted, int, int]:
    """A refit, the bytes kept until it closes, and the elements."""
    model = cost_models.model_of(sizes, nz)
    with Counted() as counted:
        left = refit(model, counted)
    return counted, left, model.elements


def refit(model: cost_models.Model, counted: Counted | None = None) -> int:
    """As `Refit` does; the bytes that are kept until it closes."""
    writes = batch.Batch(cost_models.META)
    for bucket in model.buckets:
        tensors = [tensor for _, tensor in bucket.weights]
        sources = [(name, tensor.numel()) for name, tensor in bucket.weights]
        writes.add(bucket.writes, sources, tensors, [0] * len(tensors))
        writes.flush()
    for resident in model.residents:
        resident.refresh()
    left = counted.left if counted else 0
    writes.finish()
    return left


@cache
def _proof(sizes: cost_models.Sizes) -> Cost:
    """The engine's side; of the same tensors whatever the residents' format."""
    for layers in (1, sizes.layers):
        buckets = cost_models.model_of(sizes, True, layers).buckets
        with Counted() as counted:
            received = digests.Digests()
            for bucket in buckets:
                received.add_all(bucket.weights)
            received.as_dict()
    digests_of_all = torch.zeros(100, dtype=torch.uint8, device="npu")  # their number does not matter
    with Counted() as message:
        copy = checksums.HostCopy(digests_of_all)
    copy.read()
    return counted.total + message.total


def section(entries: list[Entry]) -> str:
    """What docs/npu_ops.md says of costs."""
    return page.COST + TEXT.format(
        totals="\n".join(_line(entry) for entry in entries),
        chunk=npu_codes.FUSED_ELEMENTS >> 20,
        first=npu_write.ELEMENTS >> 20,
    )


def _line(entry: Entry) -> str:
    cost, layers, elements = entry.cost, entry.layers, entry.elements
    cells = (
        f"{MODELS[entry.model].name}, {entry.format.upper()}{', checksums' if entry.proof else ''}",
        f"{cost.ops:,} ({cost.ops / layers:.0f})",
        f"{cost.views:,} ({cost.views / layers:.0f})",
        f"{cost.bytes / elements:.2f} + {cost.hidden / elements:.2f}",
        f"{cost.h2d}, {cost.d2h}",
        cost.waits,
        cost.aicpu.total(),
        f"{entry.peak / 2**20:.0f}",
        f"{entry.left / 2**20:.0f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


TEXT = """Calls, bytes and waits (not times) are counted on meta tensors of the models' true sizes. A test fails if one
of them grows (`tests/npu_host/test_cost.py`). The bytes that operators move internally, and the operators that run on
the AI CPU, are taken from CANN's sources (`tests/npu_host/cost_counter.py`).

The table is for one refit after the first, from verl's buckets of 2 GiB, on one rank. Bytes are those of the operands,
read and written, plus those that operators move internally. Numbers in parentheses are per layer.

| model | calls | views | bytes an element | to the device, to the host | waits | AI CPU | work space, MiB | kept, MiB |
|---|---|---|---|---|---|---|---|---|
{totals}

The work space is for {chunk} Mi elements at a time ({first} Mi in the first load). The buffers in the column `kept` are
freed at the end of the refit. Not counted: verl's own copies, the first load, and the plain operators that replace a
fused operator that is missing or inexact (logged at the start).
"""
