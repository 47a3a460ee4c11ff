"""npu_quant_matmul: rows of int8 by a matrix of int8."""

import torch

from npu_host import dtypes
from npu_host.ops.numerics import dequantize, integer_matmul
from npu_host.reference import reference


@reference("npu::npu_quant_matmul")
def npu_quant_matmul(a):
    dtype = dtypes.stored(a.output_dtype, torch.int8)
    sums = integer_matmul(a.x1, a.x2)
    if a.bias is not None and a.bias.dtype == torch.int32:
        sums = sums + a.bias
    if dtype == torch.int32:
        return sums
    values = dequantize(sums, a.scale, a.pertoken_scale)
    if a.bias is not None and a.bias.dtype != torch.int32:
        values = values + a.bias.float()
    if dtype != torch.int8:
        return values.to(dtype)
    offset = 0.0 if a.offset is None else a.offset
    return (values + offset).round().clamp(-128, 127).to(torch.int8)
