"""Layers that keep their dtype on an NPU: vllm-ascend's product, without its post-load hook, which may cast or copy."""

from ascend_quant.integrations.vllm.layers.plain import FromResident
from ascend_quant.integrations.vllm_ascend.compat import AscendUnquantizedLinearMethod


class NpuPlainLinearMethod(FromResident, AscendUnquantizedLinearMethod):
    """A linear layer that is not quantized."""

    quant_method = None  # vllm-ascend 0.10's Qwen3 asks its linear layers for their scheme
