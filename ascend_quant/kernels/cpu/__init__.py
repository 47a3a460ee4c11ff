"""CPU kernels: refit.py writes weights, serve.py has the GEMMs. kernels/__init__.py lists their functions."""

from ascend_quant.kernels.counters import Counters
from ascend_quant.kernels.cpu.refit import READS_ARE_FREE, digests, prepare, read_digests, write
from ascend_quant.kernels.cpu.serve import SERVING, experts, matmul, plain_experts, storage
from ascend_quant.kernels.fallbacks import fake_quantize, float32_product
from ascend_quant.oracle import quantize_rows

__all__ = [
    "READS_ARE_FREE",
    "SERVING",
    "Counters",
    "digests",
    "experts",
    "fake_quantize",
    "float32_product",
    "matmul",
    "plain_experts",
    "prepare",
    "quantize_rows",
    "read_digests",
    "storage",
    "write",
]
