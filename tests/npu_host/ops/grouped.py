"""Matrix products of rows grouped by expert: npu_grouped_matmul and its fusions with SwiGLU and quantization."""

from collections.abc import Iterator

import torch

from npu_host import dtypes
from npu_host.ops.numerics import dequantize, group_counts, integer_matmul, padded, quantize_rows, swiglu
from npu_host.reference import reference


@reference("npu::npu_grouped_matmul")
def npu_grouped_matmul(a):
    x, weights = a.x[0], _experts(a.weight)
    dtype = dtypes.stored(a.output_dtype, x.dtype)
    bias, scale = (None if not given else _experts(given, dim=2) for given in (a.bias, a.scale))
    per_token = a.per_token_scale[0] if a.per_token_scale else None
    results = [torch.empty(0, weights[0].shape[-1], dtype=dtype)]
    for expert, rows in _rows(group_counts(a.group_list, cumulative=a.group_list_type == 0)):
        sums = _product(x[rows], weights[expert], None if bias is None else bias[expert])
        if scale is not None:
            sums = dequantize(sums, scale[expert], None if per_token is None else per_token[rows])
        results.append(sums.to(dtype))
    return [padded(torch.cat(results), x.shape[0])]


@reference("npu::npu_grouped_matmul_swiglu_quant")
def npu_grouped_matmul_swiglu_quant(a):
    codes, scales = _fused(a, [a.weight], [a.weight_scale], cumulative=True)
    return codes, scales, torch.empty([], dtype=torch.float32)


@reference("npu::npu_grouped_matmul_swiglu_quant_v2")
def npu_grouped_matmul_swiglu_quant_v2(a):
    return _fused(a, a.weight, a.weight_scale, cumulative=a.group_list_type == 0)


def _fused(a, weight, weight_scale, cumulative: bool) -> tuple[torch.Tensor, torch.Tensor]:
    weights, scale = _experts(weight), _experts(weight_scale, dim=2)
    values = [torch.empty(0, weights[0].shape[-1], dtype=torch.float32)]
    for expert, rows in _rows(group_counts(a.group_list, cumulative)):
        values.append(dequantize(integer_matmul(a.x[rows], weights[expert]), scale[expert], a.x_scale[rows]))
    codes, scales = quantize_rows(swiglu(torch.cat(values)))
    return padded(codes, a.x.shape[0]), padded(scales, a.x.shape[0])


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    sums = integer_matmul(x, weight) if x.dtype == torch.int8 else x.float() @ weight.float()
    return sums if bias is None else sums + bias


def _experts(tensors: list[torch.Tensor], dim: int = 3) -> list[torch.Tensor]:
    """One tensor an expert, from a stacked one or from a list of them."""
    return list(tensors[0]) if len(tensors) == 1 and tensors[0].dim() == dim else list(tensors)


def _rows(counts: list[int]) -> Iterator[tuple[int, slice]]:
    start = 0
    for expert, count in enumerate(counts):
        yield expert, slice(start, start + count)
        start += count
