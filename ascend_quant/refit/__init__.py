"""In-place application of one weight sync to an engine's own buffers. This package does not depend on an engine.

session.py        `Refit`: open, write, close
serving_state.py  whether the engine may serve: failed refits, sleep
check.py          parts of a refit besides weights: a tied head, smoothing, KV cache scales
plan.py           the rows to which each tensor is written, recorded during one refit through the loaders
resident.py       the engine's buffers, and the writes of a shard into them (matrices.py)
row_buffer.py     tracking of the rows that are written
scales.py         quantized weights with scales other than one per row
batch.py          queued writes of a refit; detection of NaN and Inf
kernel_warm_up.py kernels compiled before the first refit
received.py       counts of the received tensors
receipt.py        duration, counts and digest of a refit
code_snapshot.py  sampled codes kept during sleep, with which the next refit is compared
samples.py        sampled bytes of every weight, for a fast check
"""

from ascend_quant.refit.check import Check, Derived
from ascend_quant.refit.kernel_warm_up import prepare
from ascend_quant.refit.receipt import Receipt
from ascend_quant.refit.received import Received
from ascend_quant.refit.scales import resident_class
from ascend_quant.refit.session import Refit
from ascend_quant.transfer.errors import RefitError

__all__ = ["Check", "Derived", "Receipt", "Received", "Refit", "RefitError", "prepare", "resident_class"]
