"""What differs between vllm-ascend versions, found by looking.

0.23 has its methods in `quantization.method_adapters` and its schemes in `quantization.methods`.
"""

from vllm_ascend.ops.linear import AscendUnquantizedLinearMethod
from vllm_ascend.quantization.method_adapters import AscendFusedMoEMethod, AscendLinearMethod
from vllm_ascend.quantization.methods.w8a8_dynamic import AscendW8A8DynamicFusedMoEMethod as ExpertsScheme
from vllm_ascend.quantization.methods.w8a8_dynamic import AscendW8A8DynamicLinearMethod as LinearScheme

__all__ = [
    "AscendFusedMoEMethod",
    "AscendLinearMethod",
    "AscendUnquantizedLinearMethod",
    "ExpertsScheme",
    "LinearScheme",
]
