"""NPU kernels: refit/ writes weights, serve/ has the GEMMs, ops.py finds torch_npu's operators. kernels/__init__.py
lists their functions.
"""

from ascend_quant.kernels.fallbacks import fake_quantize, float32_product
from ascend_quant.kernels.npu.refit.digests import digests, read_digests
from ascend_quant.kernels.npu.refit.write import READS_ARE_FREE, Counters, prepare, write
from ascend_quant.kernels.npu.serve.experts import experts, plain_experts
from ascend_quant.kernels.npu.serve.linear import PRODUCT, matmul
from ascend_quant.kernels.registry import ServingTable
from ascend_quant.kernels.storage import Serving

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
    "read_digests",
    "write",
]

SERVING = ServingTable("npu")
SERVING.register(Serving(matmul, experts, PRODUCT), "int8")
