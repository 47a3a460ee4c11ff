"""CUDA kernels: refit/ writes weights, serve/ has GEMMs and attention. kernels/__init__.py lists their functions.
triton_elements.py has elementwise arithmetic, triton_early.py the programmatic dependent launch (PDL) of kernels.
"""

from ascend_quant.kernels.counters import Counters
from ascend_quant.kernels.cuda.refit.digests import digests, read_digests
from ascend_quant.kernels.cuda.refit.triton_groups import fake_quantize
from ascend_quant.kernels.cuda.refit.write import READS_ARE_FREE, prepare, write
from ascend_quant.kernels.cuda.serve.products import (
    SERVING,
    experts,
    float32_product,
    matmul,
    quantize_rows,
    router_product,
    storage,
)

__all__ = [
    "READS_ARE_FREE",
    "SERVING",
    "Counters",
    "digests",
    "experts",
    "fake_quantize",
    "float32_product",
    "matmul",
    "prepare",
    "quantize_rows",
    "read_digests",
    "router_product",
    "storage",
    "write",
]
