"""int8 linear layers with vllm-ascend's W8A8-dynamic scheme: npu_dynamic_quant, then npu_quant_matmul."""

import torch
from torch import nn
from vllm.model_executor.utils import set_weight_attrs

from ascend_quant.engine import layout
from ascend_quant.integrations.vllm.layers.plain import FromResident, after_loading
from ascend_quant.integrations.vllm_ascend.compat import AscendLinearMethod, AscendUnquantizedLinearMethod, LinearScheme
from ascend_quant.kernels.npu.refit.formats import new_codes


class Int8LinearScheme(LinearScheme):
    """vllm-ascend's W8A8 scheme; its post-load hook does nothing, since the weight already has its layout."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        after_loading(layer)


class Int8NpuLinearMethod(AscendLinearMethod):
    """Linear method over resident codes `weight` (K, N) int8 and scales `weight_scale` (N) float32.

    Args:
        nz: whether to store the codes in FRACTAL_NZ.
    """

    def __init__(self, nz: bool):
        super().__init__(Int8LinearScheme())
        self.nz = nz

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs,
    ) -> None:
        rows = sum(output_partition_sizes)
        layer.register_parameter(
            "weight_scale", nn.Parameter(torch.zeros(rows, dtype=torch.float32), requires_grad=False)
        )
        # vllm-ascend also reads this for shared experts; its own hook makes a float32 copy
        layer.weight_scale_fp32 = layer.weight_scale.data
        codes = new_codes((input_size_per_partition, rows), self.nz)
        attributes = {"input_dim": 1, "output_dim": 0, **extra_weight_attrs}
        shape = (rows, input_size_per_partition)
        set_weight_attrs(layout.register(layer, "weight", shape, codes, layer.weight_scale.data), attributes)
        layer.whole_input_size = input_size


class NpuPlainLinearMethod(FromResident, AscendUnquantizedLinearMethod):
    """Linear method of a layer that is not quantized."""

    quant_method = None  # vllm-ascend 0.10's Qwen3 reads the scheme of its linear layers
