"""Quantization-aware training: forward passes compute with the weights that the rollout engine will compute with.

    from ascend_quant.qat import apply_fake_quantization
    print(apply_fake_quantization(model, "int4_g128", ignore=["re:.*self_attn.*"]))

straight_through.py   dequantize(quantize(w)) with the gradient of the identity
layers.py             selection of the layers: Linear, and experts' tensors
modules.py            layers that compute with fake-quantized weights, with unchanged parameters
variables.py          selection by slime's environment variables

Megatron-core's layers: `ascend_quant.integrations.megatron`. verl: `ascend_quant.integrations.verl.training.qat`.
"""

from ascend_quant.qat.layers import apply_fake_quantization
from ascend_quant.qat.modules import Applied, without_fake_quantization
from ascend_quant.qat.straight_through import SCHEMES, fake_quantize
from ascend_quant.qat.variables import scheme_of_environment

__all__ = [
    "SCHEMES",
    "Applied",
    "apply_fake_quantization",
    "fake_quantize",
    "scheme_of_environment",
    "without_fake_quantization",
]
