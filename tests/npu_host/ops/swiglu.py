"""SwiGLU: npu_swiglu, and npu_dequant_swiglu_quant from int32 sums to int8 codes."""

import torch

from npu_host.ops.numerics import padded, quantize_rows, swiglu
from npu_host.reference import reference


@reference("npu::npu_swiglu")
def npu_swiglu(a):
    return swiglu(a.input.movedim(a.dim, -1)).movedim(-1, a.dim).to(a.input.dtype)


@reference("npu::npu_dequant_swiglu_quant")
def npu_dequant_swiglu_quant(a):
    rows = a.x.shape[0] if a.group_index is None else int(a.group_index.sum())
    values = a.x[:rows].float()
    if a.weight_scale is not None:
        group = torch.zeros(rows, dtype=torch.int64)
        if a.group_index is not None:
            group = torch.repeat_interleave(torch.arange(a.group_index.numel()), a.group_index)
        values = values * a.weight_scale[group] * a.activation_scale[:rows].unsqueeze(-1)
    codes, scales = quantize_rows(swiglu(values, gate_first=a.activate_left))
    return padded(codes, a.x.shape[0]), padded(scales, a.x.shape[0])
