"""Linear layers in int8: qkv, gate_up, row- and column-parallel, replicated; with and without bias."""

import torch
from vllm.model_executor.layers.linear import LinearMethodBase
from vllm.model_executor.utils import set_weight_attrs

from ascend_quant.integrations.vllm.plain import after_loading
from ascend_quant.kernels import kernels_for


class Int8LinearMethod(LinearMethodBase):
    """Resident codes `weight` (N, K) int8 and scales `weight_scale` (N, 1) float32, on one rank."""

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
        rows = sum(output_partition_sizes)
        codes = torch.zeros(rows, input_size_per_partition, dtype=torch.int8)
        scale = torch.zeros(rows, 1, dtype=torch.float32)
        layer.register_parameter("weight", torch.nn.Parameter(codes, requires_grad=False))
        layer.register_parameter("weight_scale", torch.nn.Parameter(scale, requires_grad=False))
        set_weight_attrs(layer.weight, {"input_dim": 1, "output_dim": 0, **extra_weight_attrs})
        layer.whole_input_size = input_size
        self.matmul = kernels_for(codes.device).matmul  # found here: torch.compile cannot trace the search

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        after_loading(layer)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self.matmul(x, layer.weight, layer.weight_scale.view(-1), bias)
