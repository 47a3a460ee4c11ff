"""vllm-ascend's own operators that its int8 MoE calls on Atlas A2/A3, by way of torch_npu's equivalents.

They are compiled with CANN when vllm-ascend is installed on an NPU host; the schemas are those of its 0.23.0.post1,
csrc/torch_binding.cpp. What goes through torch_npu's operator is checked and recorded there as well.
"""

import torch

from npu_host.ops.routing import gating_top_k
from npu_host.reference import reference

SCHEMAS = (
    "grouped_matmul_swiglu_quant_weight_nz(Tensor x, Tensor weight, Tensor weight_scale, Tensor x_scale,"
    " Tensor group_list, *, Tensor? bias=None, Tensor? offset=None, float swiglu_limit=0.0)"
    " -> (Tensor, Tensor, Tensor)",
    "npu_dequant_swiglu_quant(Tensor x, *, Tensor? weight_scale=None, Tensor? activation_scale=None,"
    " Tensor? bias=None, Tensor? quant_scale=None, Tensor? quant_offset=None, Tensor? group_index=None,"
    " bool activate_left=True, int quant_mode=0, int swiglu_mode=0, float clamp_limit=0.0, float glu_alpha=1.0,"
    " float glu_bias=0.0) -> (Tensor, Tensor)",
    "npu_moe_init_routing_custom(Tensor x, Tensor expert_idx, *, Tensor? scale=None, Tensor? offset=None,"
    " int active_num=-1, int expert_capacity=-1, int expert_num=-1, int drop_pad_mode=0,"
    " int expert_tokens_num_type=0, bool expert_tokens_num_flag=False, int quant_mode=0,"
    " int[2] active_expert_range=[], int row_idx_type=0) -> (Tensor, Tensor, Tensor, Tensor)",
    "moe_gating_top_k(Tensor x, int k, int k_group, int group_count, int group_select_mode, int renorm,"
    " int norm_type, bool out_flag, float routed_scaling_factor, float eps, Tensor? bias_opt=None)"
    " -> (Tensor, Tensor, Tensor)",
)
_library = torch.library.Library("_C_ascend", "FRAGMENT")
for _schema in SCHEMAS:
    _library.define(_schema)


@reference("_C_ascend::grouped_matmul_swiglu_quant_weight_nz", on_device=True)
def grouped_matmul_swiglu_quant_weight_nz(a):
    if a.swiglu_limit:
        raise NotImplementedError(f"swiglu_limit={a.swiglu_limit}: not modelled, int8 models here do not clamp")
    return torch.ops.npu.npu_grouped_matmul_swiglu_quant(
        a.x, a.weight, a.group_list, a.weight_scale, a.x_scale, bias=a.bias, offset=a.offset
    )


@reference("_C_ascend::npu_dequant_swiglu_quant", on_device=True)
def npu_dequant_swiglu_quant(a):
    return torch.ops.npu.npu_dequant_swiglu_quant(**vars(a))


@reference("_C_ascend::npu_moe_init_routing_custom", on_device=True)
def npu_moe_init_routing_custom(a):
    return torch.ops.npu.npu_moe_init_routing_v2(**vars(a))


@reference("_C_ascend::moe_gating_top_k")
def moe_gating_top_k(a):
    # torch_npu's operator takes renorm 0 only; this one was written for renorm 1, which divides by the chosen's sum.
    if (a.group_count, a.k_group) != (1, 1):
        raise NotImplementedError(f"group_count={a.group_count}, k_group={a.k_group}: only one group is modelled")
    return gating_top_k(a.x, a.bias_opt, a.k, a.norm_type, a.renorm, a.routed_scaling_factor, a.eps)
