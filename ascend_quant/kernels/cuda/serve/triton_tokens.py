"""Dynamic per-token quantization of activations to int8 in Triton, exactly as `oracle.quantize_rows`.

A program quantizes one row, with scale absmax / 127, and reads it once.

BF16 elements are multiplied by a per-row factor (`triton_elements.reciprocal`); others are divided by the scale.
"""

import torch
import triton
import triton.language as tl

from ascend_quant.kernels.cuda import triton_elements as elements
from ascend_quant.kernels.cuda.refit.triton_entries import loaded
from ascend_quant.kernels.cuda.triton_early import launch, starts_early, wait

WIDEST = 32768  # elements of a row that fit the registers; longer rows are read twice
PER_WARP = 512  # elements: two BF16 vectors per thread
MOST_WARPS = 8


def tiling(columns: int) -> tuple[int, int]:
    """Return how many elements of a row a program reads at once, and its warps."""
    width = min(triton.next_power_of_2(columns), WIDEST)
    return width, min(max(width // PER_WARP, 1), MOST_WARPS)


@triton.jit
def quantize_rows(
    source,
    codes,
    scales,
    stride,  # between rows of `source`
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Quantize rows to int8, one program per row; `codes` and `scales` are contiguous."""
    row = tl.program_id(0).to(tl.int64)
    one = tl.arange(0, 1)
    at = (source + row * stride)[None] + one[:, None]
    to = (codes + row * K)[None] + one[:, None]
    columns = tl.arange(0, WIDTH)
    valid = one == 0
    wait(EARLY)
    if K <= WIDTH:
        part = loaded(at, 1, valid, columns, K, "evict_first")
        scale, factor = scale_and_factor(largest(part), part.dtype)
        _write(to, part, scale, factor, columns, K)
    else:
        top = tl.zeros((1,), tl.int32)
        for first in tl.range(0, K, WIDTH):
            part = loaded(at, 1, valid, first + columns, K, "evict_last")
            top = tl.maximum(top, largest(part))
        scale, factor = scale_and_factor(top, source.dtype.element_ty)
        for first in tl.range(0, K, WIDTH):
            part = loaded(at, 1, valid, first + columns, K, "evict_first")
            _write(to, part, scale, factor, first + columns, K)
    tl.store(scales + row + one, scale)


@triton.jit
def largest(part):
    """Return the absmax of each row, as the bits of a float32."""
    return tl.max(elements.magnitude(elements.as_float(part)), 1)


@triton.jit
def scale_and_factor(absmax_bits, TYPE: tl.constexpr):
    """Return a row's scale, and the factor (BF16) or divisor for its elements."""
    if tl.bfloat16 == TYPE:
        scale = elements.scale_of(absmax_bits, "int8")
        factor = elements.reciprocal(absmax_bits, scale)
    else:
        scale = elements.scale_of(absmax_bits, "int8_float32")
        factor = scale
    return scale, factor


@triton.jit
def _write(to, part, scale, factor, columns, K: tl.constexpr):
    if part.dtype == tl.bfloat16:
        code = codes_of(part, factor)
    else:
        code = elements.outer_code(elements.as_float(part), scale[:, None]).to(tl.int8)
    tl.store(to + columns[None, :], code, mask=(columns < K)[None, :])


@triton.jit
def codes_of(part, factor):
    """Return int8 codes of BF16 elements."""
    product = elements.as_float(part) * factor[:, None]
    return ((product + elements.MAGIC).to(tl.int32, bitcast=True) - elements.MAGIC_BITS).to(tl.int8)


def quantize_tokens(x_MK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize rows of BF16, FP16 or float32, without rounding to BF16 first.

    Returns:
        int8 codes (M, K) and float32 scales (M, 1); a row with NaN or Inf has a non-finite scale and undefined codes.
    """
    x_MK = x_MK if x_MK.stride(1) == 1 else x_MK.contiguous()
    rows, columns = x_MK.shape
    codes_MK, scale_M1 = outputs(x_MK, columns)
    if rows:
        width, warps = tiling(columns)
        early = starts_early(x_MK.device)
        with torch.cuda.device_of(x_MK):
            quantize_rows[(rows,)](
                x_MK, codes_MK, scale_M1, x_MK.stride(0), columns, width, early, num_warps=warps, **launch(early)
            )
    return codes_MK, scale_M1


def outputs(x: torch.Tensor, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate the tensors for codes and scales."""
    codes_MK = torch.empty((x.shape[0], columns), dtype=torch.int8, device=x.device)
    return codes_MK, torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
