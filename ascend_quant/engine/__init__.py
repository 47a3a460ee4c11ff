"""Code shared by all engine integrations, besides the refit; `integrations/` has the code for single engines.

options.py    the user's options
loading.py    interception of the engine's weight loaders, whose copies become writes of the refit
source.py     the tensor that the loaders have just received: how much of it has been written
layout.py     weights in another layout than a checkpoint's (NPUs, int4), and placeholders for the loaders
unmatched.py  tensors that may be sent although a rank has no parameter for them
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
