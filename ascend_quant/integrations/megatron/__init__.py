"""Megatron-core (and MindSpeed, which is built on it): fake quantization of its layers.

qat.py       linear layers split by rows or columns, and grouped experts
ignored.py   which of them are not quantized, by the engine's names
"""

from ascend_quant.integrations.megatron.qat import apply_fake_quantization

__all__ = ["apply_fake_quantization"]
