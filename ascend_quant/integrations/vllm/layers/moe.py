"""Fused experts, quantized or not: SwiGLU, routed by vLLM, computed from the resident parameters.

w13 contains each expert's gate rows, then its up rows; w2 its down projection.
"""

from collections.abc import Callable

import torch
from vllm.model_executor.utils import set_weight_attrs

from ascend_quant.integrations.vllm import buffers
from ascend_quant.integrations.vllm.compat import ExpertsMethodBase, routes_by_itself, select_experts
from ascend_quant.integrations.vllm.layers.plain import after_loading
from ascend_quant.kernels import kernels_for, serving_of
from ascend_quant.kernels.engine_products import engine_product
from ascend_quant.refit import RefitError
from ascend_quant.schemes import Scheme


class ExpertsMethod(ExpertsMethodBase):
    """Base class of the methods for fused experts (MoE), quantized and plain.

    Attributes:
        record: called with the expert ids (M, T) that are routed here, see routed_experts.py; None if they are not
            requested.
    """

    record: Callable[[torch.Tensor], None] | None = None

    def __init__(self, moe, prefix: str):
        super().__init__(moe)
        self.prefix = prefix
        refuse_unservable(moe, prefix)

    def create_weights(
        self,
        layer: torch.nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs,
    ) -> None:
        if getattr(layer, "apply_router_weight_on_input", False):
            raise RefitError(f"{self.prefix}: experts with routing weights applied to their inputs are not supported")
        shapes = {
            "w13_weight": (num_experts, 2 * intermediate_size_per_partition, hidden_size),
            "w2_weight": (num_experts, hidden_size, intermediate_size_per_partition),
        }
        for name, shape in shapes.items():
            self._create(layer, name, shape, params_dtype, extra_weight_attrs)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        after_loading(layer)

    def get_fused_moe_quant_config(self, layer: torch.nn.Module) -> None:
        return None

    @property
    def is_monolithic(self) -> bool:
        """True if vLLM passes router logits instead of routed ids."""
        return not routes_by_itself()

    def apply_monolithic(self, layer, x, router_logits, *rest, **rest_by_name):
        weights, ids = select_experts(layer, x, router_logits)
        if self.record is not None:
            self.record(ids)
        return self.apply(layer, x, weights, ids)


class QuantizedExpertsMethod(ExpertsMethod):
    """MoE method over resident codes and scales of w13 and w2, stacked; see kernels/storage.py."""

    def __init__(self, moe, prefix: str, scheme: Scheme):
        super().__init__(moe, prefix)
        self.scheme, self.scale_names = scheme, {}
        # looked up here, since torch.compile cannot trace the lookup
        self.experts = serving_of(scheme, torch.get_default_device()).experts

    def _create(self, layer, name, shape, params_dtype, attributes) -> None:
        self.scale_names[name] = buffers.register(layer, name, self.scheme, shape, attributes)

    def apply(self, layer, x, topk_weights, topk_ids, *shared, **shared_by_name):
        w13_scale, w2_scale = (getattr(layer, self.scale_names[name]) for name in ("w13_weight", "w2_weight"))
        experts = (layer.w13_weight, w13_scale, layer.w2_weight, w2_scale)
        return self.experts(x, topk_weights, topk_ids, *experts, layer.expert_map)


class PlainExpertsMethod(ExpertsMethod):
    """MoE method of experts that keep their dtype (vLLM's own CPU experts keep packed copies, see plain.py)."""

    def __init__(self, moe, prefix: str):
        super().__init__(moe, prefix)
        # looked up here, since torch.compile cannot trace the lookup
        own = getattr(kernels_for(torch.get_default_device()), "plain_experts", None)
        self.experts = own or engine_product("plain_experts")

    def _create(self, layer, name, shape, params_dtype, attributes) -> None:
        weight = torch.nn.Parameter(torch.zeros(shape, dtype=params_dtype), requires_grad=False)
        layer.register_parameter(name, weight)
        set_weight_attrs(weight, attributes)

    def apply(self, layer, x, topk_weights, topk_ids, *shared, **shared_by_name):
        return self.experts(x, topk_weights, topk_ids, layer.w13_weight, layer.w2_weight, layer.expert_map)


def refuse_unservable(moe, prefix: str) -> None:
    """Raise RefitError for experts with arithmetic that these methods do not implement."""
    activation = str(getattr(getattr(moe, "activation", "silu"), "value", getattr(moe, "activation", "silu")))
    if activation != "silu" or not getattr(moe, "is_act_and_mul", True):
        raise RefitError(f"{prefix}: experts with activation {activation!r} are not supported; only 'silu' (SwiGLU) is")
    if getattr(moe, "swiglu_limit", None):
        raise RefitError(f"{prefix}: experts with swiglu_limit={moe.swiglu_limit} are not supported")
    if getattr(moe, "has_bias", False):
        raise RefitError(f"{prefix}: experts with biases are not supported")
