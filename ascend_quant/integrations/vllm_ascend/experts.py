"""Fused int8 experts with vllm-ascend's W8A8-dynamic scheme: grouped products around SwiGLU."""

import torch
from torch import nn
from vllm.model_executor.utils import set_weight_attrs

from ascend_quant.engine import layout
from ascend_quant.integrations.vllm.layers.moe import refuse_unservable
from ascend_quant.integrations.vllm.layers.plain import after_loading
from ascend_quant.integrations.vllm_ascend.compat import (
    EXPERTS_IN_NZ,
    RANKS_FOR_GRAPHS,
    ROUNDED_SCALES,
    AscendFusedMoEMethod,
    ExpertsScheme,
)
from ascend_quant.kernels.npu.refit.formats import new_codes
from ascend_quant.refit import RefitError


class Int8ExpertsScheme(ExpertsScheme):
    """vllm-ascend's W8A8 scheme for experts; its post-load hook does nothing, as weights have its layout."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        after_loading(layer)


class Int8NpuExpertsMethod(AscendFusedMoEMethod):
    """MoE method over resident int8 codes (E, K, N) and scales (E, N) of w13 and w2, for vllm-ascend's MoE computation.

    Scales are stored in float32; those that npu_grouped_matmul reads also in the model's dtype.
    """

    def __init__(self, moe, prefix: str, tid2eid=None):
        refuse_unservable(moe, prefix)
        self.prefix = prefix
        scheme = Int8ExpertsScheme()
        if moe.moe_parallel_config.ep_size < RANKS_FOR_GRAPHS and scheme.use_aclgraph:
            raise RefitError(
                f"{prefix}: this vllm-ascend supports int8 experts in ACL graphs only with an expert parallel "
                f"size of at least {RANKS_FOR_GRAPHS}: set enforce_eager"
            )
        super().__init__(scheme, moe, tid2eid)

    def create_weights(
        self,
        layer: nn.Module,
        num_experts: int | torch.Tensor,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs,
    ) -> None:
        if params_dtype != torch.bfloat16:
            raise RefitError(f"{self.prefix}: int8 experts on NPUs need dtype bfloat16, not {params_dtype}")
        self._refuse_by_layer(layer)
        experts = int(num_experts)  # vllm-ascend 0.10 counts them on the device
        shapes = {
            "w13_weight": (experts, hidden_size, 2 * intermediate_size_per_partition),
            "w2_weight": (experts, intermediate_size_per_partition, hidden_size),
        }
        for name, shape_EKN in shapes.items():
            self._create(layer, name, shape_EKN, params_dtype, extra_weight_attrs)
        layer.w13_weight_scale_fp32 = layout.layouts_of(layer)["w13_weight"].scale  # theirs is a copy of the scale

    def _create(self, layer: nn.Module, name: str, shape_EKN: tuple, dtype: torch.dtype, attributes: dict) -> None:
        scale_EN = torch.zeros(shape_EKN[0], shape_EKN[2], dtype=torch.float32)
        rounded = f"{name}_scale" in ROUNDED_SCALES
        parameter = nn.Parameter(scale_EN.to(dtype) if rounded else scale_EN, requires_grad=False)
        layer.register_parameter(f"{name}_scale", parameter)
        codes, copies = new_codes(shape_EKN, EXPERTS_IN_NZ), [parameter.data] if rounded else []
        shape_ENK = (shape_EKN[0], shape_EKN[2], shape_EKN[1])
        set_weight_attrs(layout.register(layer, name, shape_ENK, codes, scale_EN, copies=copies), attributes)

    def _refuse_by_layer(self, layer: nn.Module) -> None:
        """Refuse features that vllm-ascend 0.10 would silently ignore, and that vLLM's experts config does not show."""
        activation = getattr(layer, "activation", "silu")
        if getattr(activation, "value", activation) != "silu":
            raise RefitError(f"{self.prefix}: experts with activation {activation!r} are not supported; only 'silu' is")
        if getattr(layer, "apply_router_weight_on_input", False):
            raise RefitError(f"{self.prefix}: experts with routing weights applied to their inputs are not supported")
