"""Differences between vllm-ascend versions, detected by probing.

|                                | 0.23, 0.27, 0.30             | 0.10                              |
|--------------------------------|------------------------------|-----------------------------------|
| layer methods                  | quantization.method_adapters | quantization.quant_config         |
| schemes                        | quantization.methods         | quantization.w8a8_dynamic         |
| argument of a method           | its scheme                   | a description of its layer        |
| quantization configs           | any                          | its own class (for its Qwen3)     |
| experts                        | FRACTAL_NZ                   | plain                             |
| scales in the model's dtype    | w2                           | w13 and w2                        |
| int8 experts in ACL graphs     | always                       | with 16 ranks or more             |
| an int8 KV cache (C8)          | quantization.methods         | none                              |

With this module, all versions have methods that are created from their scheme, and one base class for our config. The
newer versions differ only in settings (refusals.py) and in their vLLM, where expert weights are in a separate module.
"""

from importlib import import_module
from importlib.util import find_spec

from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from ascend_quant.integrations.vllm_ascend import RANKS_FOR_GRAPHS_0_10

if find_spec("vllm_ascend.quantization.method_adapters"):
    from vllm_ascend.ops.linear import AscendUnquantizedLinearMethod
    from vllm_ascend.quantization.method_adapters import AscendFusedMoEMethod, AscendKVCacheMethod, AscendLinearMethod
    from vllm_ascend.quantization.methods import AscendW8A8DynamicFusedMoEMethod as ExpertsScheme
    from vllm_ascend.quantization.methods import AscendW8A8DynamicLinearMethod as LinearScheme

    OwnConfig = QuantizationConfig
    EXPERTS_IN_NZ = True
    ROUNDED_SCALES = ("w2_weight_scale",)
    RANKS_FOR_GRAPHS = 1
    _C8 = [f"vllm_ascend.quantization.methods.{name}" for name in ("kv_c8", "kv_cache.kv_c8")]  # before 0.30, since
    C8Scheme = next((import_module(name).AscendC8KVCacheAttentionMethod for name in _C8 if find_spec(name)), None)
else:
    from vllm_ascend.quantization import quant_config
    from vllm_ascend.quantization.quant_config import AscendQuantConfig as OwnConfig
    from vllm_ascend.quantization.w8a8_dynamic import AscendW8A8DynamicFusedMoEMethod as ExpertsScheme
    from vllm_ascend.quantization.w8a8_dynamic import AscendW8A8DynamicLinearMethod as LinearScheme

    AscendUnquantizedLinearMethod = UnquantizedLinearMethod  # this version uses vLLM's
    EXPERTS_IN_NZ = False
    ROUNDED_SCALES = ("w13_weight_scale", "w2_weight_scale")  # npu_grouped_matmul takes both in the model's dtype
    C8Scheme = AscendKVCacheMethod = None
    RANKS_FOR_GRAPHS = RANKS_FOR_GRAPHS_0_10

    class AscendLinearMethod(quant_config.AscendLinearMethod):
        """vllm-ascend's linear method, created from a scheme."""

        def __init__(self, scheme: LinearScheme):
            self.quant_method = scheme

    class AscendFusedMoEMethod(quant_config.AscendFusedMoEMethod):
        """vllm-ascend's MoE method, created from a scheme; this version does not know `tid2eid`."""

        def __init__(self, scheme: ExpertsScheme, moe, tid2eid=None):
            FusedMoEMethodBase.__init__(self, moe)
            self.quant_method = scheme


def attention_class() -> type:
    """Return the class of attention layers that C8 replaces."""
    return import_module("vllm_ascend.attention.attention_v1").AscendAttentionBackendImpl


def device_type() -> str:
    """Return the kind of NPU, such as A2 or A3."""
    return import_module("vllm_ascend.utils").get_ascend_device_type().name


class AscendConfig(OwnConfig):
    """Quantization config without layer descriptions; vllm-ascend's own expects those of ModelSlim."""

    def __init__(self):
        QuantizationConfig.__init__(self)  # which vllm-ascend's constructor does not call
        self.quant_description: dict[str, str] = {}  # its norms look here for ModelSlim's biases


__all__ = [
    "EXPERTS_IN_NZ",
    "RANKS_FOR_GRAPHS",
    "ROUNDED_SCALES",
    "AscendConfig",
    "AscendFusedMoEMethod",
    "AscendKVCacheMethod",
    "AscendLinearMethod",
    "AscendUnquantizedLinearMethod",
    "C8Scheme",
    "ExpertsScheme",
    "LinearScheme",
    "attention_class",
    "device_type",
]
