"""Code that all engine integrations share in addition to a refit; `integrations/` has the code for single engines.

options.py    what a user may set
loading.py    every copy into a resident parameter, whichever of the engine's loaders makes it
source.py     the tensor that the loaders have just received: how much of it has been written
layout.py     weights in another layout than a checkpoint's (NPUs, int4), and their stand-ins for the loaders
unmatched.py  tensors that are right to come though a rank has no place for them
"""

from ascend_quant.engine.layout import Layout, layouts_of, lent
from ascend_quant.engine.loading import Loading, guard, storage_of
from ascend_quant.engine.options import Options
from ascend_quant.engine.unmatched import TiedHead, UnmatchedWeights

__all__ = [
    "Layout",
    "Loading",
    "Options",
    "TiedHead",
    "UnmatchedWeights",
    "guard",
    "layouts_of",
    "lent",
    "storage_of",
]
