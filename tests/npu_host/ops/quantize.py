"""Activations to int8: npu_dynamic_quant (a scale a row, computed) and npu_quantize (given scales)."""

import torch

from npu_host import dtypes
from npu_host.ops.numerics import quantize_rows
from npu_host.reference import reference


@reference("npu::npu_dynamic_quant")
def npu_dynamic_quant(a):
    smooth = 1.0 if a.smooth_scales is None else a.smooth_scales.float()
    return quantize_rows(a.input.float() * smooth)


@reference("npu::npu_quantize")
def npu_quantize(a):
    axis = a.axis if a.div_mode or a.axis == -2 else -1
    scales, shift = (_along(values, axis, a.input) for values in (a.scales, a.zero_points))
    scaled = a.input.float() / scales if a.div_mode else a.input.float() * scales
    dtype = dtypes.stored(a.dtype, torch.int8)
    limits = torch.iinfo(dtype)
    return (scaled + shift).round().double().clamp(limits.min, limits.max).to(dtype)  # float32 has no 2**31 - 1


def _along(values: torch.Tensor | None, axis: int, like: torch.Tensor) -> torch.Tensor:
    """A vector laid along one axis of another tensor, for broadcasting; nothing is zero."""
    if values is None:
        return torch.zeros((), dtype=torch.float32)
    if values.dim() != 1:
        return values.float()
    shape = [1] * like.dim()
    shape[axis] = values.shape[0]
    return values.float().reshape(shape)
