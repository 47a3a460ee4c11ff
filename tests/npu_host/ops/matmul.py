"""npu_quant_matmul, and npu_trans_quant_param, which packs the scales of its int8 and float16 outputs."""

import torch

from npu_host import dtypes
from npu_host.ops.numerics import dequantize, integer_matmul
from npu_host.reference import reference

SCALE_BITS = 0xFFFFE000  # the packed scale keeps 19 bits of the float32
PACKED = 1 << 46


@reference("npu::npu_quant_matmul")
def npu_quant_matmul(a):
    dtype = dtypes.stored(a.output_dtype, torch.int8)
    sums = integer_matmul(a.x1, a.x2)
    if a.bias is not None and a.bias.dtype == torch.int32:
        sums = sums + a.bias
    if dtype == torch.int32:
        return sums
    values = dequantize(sums, _unpacked(a.scale), a.pertoken_scale)
    if a.bias is not None and a.bias.dtype != torch.int32:
        values = values + a.bias.float()
    if dtype != torch.int8:
        return values.to(dtype)
    offset = 0.0 if a.offset is None else a.offset
    return (values + offset).round().clamp(-128, 127).to(torch.int8)


@reference("npu::npu_trans_quant_param")
def npu_trans_quant_param(a):
    return (a.scale.view(torch.int32).to(torch.int64) & SCALE_BITS) | PACKED


def _unpacked(scale: torch.Tensor) -> torch.Tensor:
    if scale.dtype != torch.int64:
        return scale
    bits = scale & SCALE_BITS
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)
