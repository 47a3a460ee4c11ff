"""Megatron-core (and MindSpeed, which is built on it): fake quantization of its layers."""

from ascend_quant.integrations.megatron.qat import apply_fake_quantization

__all__ = ["apply_fake_quantization"]
