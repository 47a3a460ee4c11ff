"""Fake quantization of the layers of Megatron-core, and of MindSpeed, which is built on it.

qat.py       linear layers split by rows or columns, and grouped experts
ignored.py   layers that are not quantized, by the engine's names
"""

from ascend_quant.integrations.megatron.qat import apply_fake_quantization

__all__ = ["apply_fake_quantization"]
