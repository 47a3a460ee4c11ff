"""A refit applies one weight sync in place to an engine's own buffers. This package does not depend on an engine.

session.py        `Refit`: open, write, close
serving_state.py  whether the engine may serve: failed refits, sleep
check.py          what else a refit updates or checks: a tied head, smoothing, KV cache scales
plan.py           the rows that each tensor is written to, recorded during one refit through the loaders
resident.py       the engine's buffers, and what a shard writes into them (matrices.py)
row_buffer.py     tracking of the rows that are written
scales.py         quantized weights with other scales than one per row
batch.py          writes on their way to the kernels; NaN and infinity
kernel_warm_up.py kernels compiled before the first refit
received.py       tensors counted as they were sent
receipt.py        duration, counts and digest of a refit
code_snapshot.py  the codes that a refit is compared with, kept over a sleep
samples.py        some bytes of every weight, for a glance at them
"""

from ascend_quant.refit.check import Check, Derived
from ascend_quant.refit.kernel_warm_up import prepare
from ascend_quant.refit.receipt import Receipt
from ascend_quant.refit.received import Received
from ascend_quant.refit.scales import resident_class
from ascend_quant.refit.session import Refit
from ascend_quant.transfer.errors import RefitError

__all__ = ["Check", "Derived", "Receipt", "Received", "Refit", "RefitError", "prepare", "resident_class"]
