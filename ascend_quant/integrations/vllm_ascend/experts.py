"""Fused experts in int8 with vllm-ascend's W8A8-dynamic scheme: grouped products, the first one fused with SwiGLU."""

import torch
from torch import nn

from ascend_quant.integrations.vllm import lying
from ascend_quant.integrations.vllm.moe import refuse_unservable
from ascend_quant.integrations.vllm.plain import after_loading
from ascend_quant.integrations.vllm_ascend.versions import AscendFusedMoEMethod, ExpertsScheme
from ascend_quant.kernels.npu_formats import new_codes
from ascend_quant.resident import RefitError


class Int8ExpertsScheme(ExpertsScheme):
    """vllm-ascend's, which finds the weights as its own hook would leave them; nothing is left to be done."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        after_loading(layer)


class Int8NpuExpertsMethod(AscendFusedMoEMethod):
    """Resident codes (E, K, N) int8, always in FRACTAL_NZ, and scales (E, N) of w13 and w2.

    The scales of w2 are kept twice: exact in float32, and in the model's dtype, which npu_grouped_matmul wants.
    """

    def __init__(self, moe, prefix: str, tid2eid=None):
        refuse_unservable(moe, prefix)
        self.prefix = prefix
        scheme = Int8ExpertsScheme()
        if getattr(scheme, "dynamic_eplb", False):
            raise RefitError(f"{prefix}: dynamic_eplb keeps copies of the experts, which a refit would not reach")
        super().__init__(scheme, moe, tid2eid)

    def create_weights(
        self,
        layer: nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs,
    ) -> None:
        if params_dtype != torch.bfloat16:
            raise RefitError(f"{self.prefix}: int8 experts on NPUs compute in bfloat16, not in {params_dtype}")
        up, down = 2 * intermediate_size_per_partition, intermediate_size_per_partition
        sizes = ((num_experts, up), (num_experts, hidden_size))
        w13_scale_EN, w2_scale_EN = (torch.zeros(size, dtype=torch.float32) for size in sizes)
        layer.register_parameter("w13_weight_scale", nn.Parameter(w13_scale_EN, requires_grad=False))
        layer.w13_weight_scale_fp32 = layer.w13_weight_scale.data  # vllm-ascend's own hook makes a copy
        rounded_EN = nn.Parameter(w2_scale_EN.to(params_dtype), requires_grad=False)
        layer.register_parameter("w2_weight_scale", rounded_EN)
        w13 = new_codes((num_experts, hidden_size, up), nz=True)
        w2 = new_codes((num_experts, down, hidden_size), nz=True)
        lying.register(layer, "w13_weight", w13, layer.w13_weight_scale.data, extra_weight_attrs)
        lying.register(layer, "w2_weight", w2, w2_scale_EN, extra_weight_attrs, copies=[rounded_EN.data])
