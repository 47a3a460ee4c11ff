"""A refit: one weight sync, written in place into an engine's own buffers. Nothing here knows an engine.

session.py       `Refit`: open, write, close
servable.py      whether the engine may serve: failed refits, sleep
plan.py          which rows each tensor ends in, learnt from one refit through the loaders
resident.py      the engine's buffers, and which of their rows are written
scales.py        those whose scales are shared otherwise than by rows
sent.py          what a trainer may hand over, checked
coding.py        weights that travel as codes
delta.py         what has changed in what travels
smoothing.py     a profile at work
batch.py         writes on their way to the kernels
proof.py         that what was sent is what arrived
receipt.py       what a refit says of itself
former_codes.py  what a refit is compared with, kept over a sleep
samples.py       some bytes of every weight, for a glance at them
errors.py        what is raised
"""

from ascend_quant.refit.errors import RefitError
from ascend_quant.refit.receipt import Receipt
from ascend_quant.refit.scales import resident_class
from ascend_quant.refit.session import Refit

__all__ = ["Receipt", "Refit", "RefitError", "resident_class"]
