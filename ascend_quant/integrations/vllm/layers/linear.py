"""Quantized linear layers: qkv, gate_up, row- and column-parallel, replicated; with and without bias."""

import torch
from vllm.model_executor.layers.linear import LinearMethodBase

from ascend_quant.integrations.vllm import buffers
from ascend_quant.integrations.vllm.layers.plain import after_loading
from ascend_quant.kernels import serving_of
from ascend_quant.schemes import Scheme


class QuantizedLinearMethod(LinearMethodBase):
    """Linear method over a resident `weight` (codes) and `weight_scale`, on one rank; see kernels/storage.py."""

    def __init__(self, scheme: Scheme):
        self.scheme = scheme
        # looked up here, since torch.compile cannot trace the lookup
        self.product = serving_of(scheme, torch.get_default_device()).linear

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs,
    ) -> None:
        shape = (sum(output_partition_sizes), input_size_per_partition)
        attributes = {"input_dim": 1, "output_dim": 0, **extra_weight_attrs}
        self.scale_name = buffers.register(layer, "weight", self.scheme, shape, attributes)
        layer.whole_input_size = input_size

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        after_loading(layer)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self.product(x, layer.weight, getattr(layer, self.scale_name), bias)
