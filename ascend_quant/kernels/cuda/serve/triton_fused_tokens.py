"""int8 quantization of activations, fused with RMSNorm (with or without a residual) or with silu(gate) * up.

A program holds one row in registers. The values are computed in float32 and rounded to BF16 once, as Inductor does, or
(ROUND, for exact engines) wherever exact_ops.py does; the codes are then `oracle.quantize_rows` of these BF16 values.
With CODED=False the same kernels write the values themselves, so that a trainer sums a row in the engine's order.
"""

import math

import torch
import triton
import triton.language as tl

from ascend_quant.kernels.cuda.serve.triton_tokens import WIDEST, codes_of, largest, outputs, scale_and_factor, tiling
from ascend_quant.kernels.cuda.triton_early import launch, starts_early, wait

MINUS_LOG2_E = tl.constexpr(-math.log2(math.e))
PER_WARP = 256  # elements of a norm's row per warp: threads then store the elements that they have loaded
WARPS = {8192: 8}  # by row length of norms, if MOST_WARPS would be too many
MOST_WARPS = 16


def takes(columns: int, dtype: torch.dtype) -> bool:
    """Return whether the kernels support rows with this many columns of codes."""
    return columns <= WIDEST and dtype == torch.bfloat16


@triton.jit
def norm_rows(
    source,
    residual,
    weight,
    total,  # the input of the norm: the sum of `source` and `residual`
    codes,  # or the values, if not CODED
    scales,
    stride,  # between rows of `source`; all other tensors are contiguous
    eps,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    ADD: tl.constexpr,
    ROUND: tl.constexpr,
    CODED: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)[None, :]
    inside = columns < K
    wait(EARLY)
    values = tl.load(source + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        values += tl.load(residual + row * K + columns, mask=inside, other=0.0).to(tl.float32)
        if ROUND:
            values = values.to(tl.bfloat16).to(tl.float32)
    squares = values * values
    if ROUND:  # products are exact in float32; a float64 sum does not depend on the order or on the threads
        squares = squares.to(tl.float64)
    by_root = tl.rsqrt((tl.sum(squares, 1) / K).to(tl.float32) + eps)
    scaled = values * by_root[:, None]
    if ROUND:
        scaled = scaled.to(tl.bfloat16).to(tl.float32)
    _store(codes, scales, (scaled * gain).to(tl.bfloat16), row, columns, K, CODED)
    if ADD:  # last, since it may have to be exchanged between threads
        tl.store(total + row * K + columns, values.to(tl.bfloat16), mask=inside)


@triton.jit
def silu_rows(
    gate_rows,
    up_rows,
    codes,  # or the values, if not CODED
    scales,
    gate_stride,  # between rows
    up_stride,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    ROUND: tl.constexpr,
    CODED: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)[None, :]
    inside = columns < K
    wait(EARLY)
    gate = tl.load(gate_rows + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_rows + row * up_stride + columns, mask=inside, other=0.0).to(tl.float32)
    root = tl.rsqrt(1.0 + tl.exp2(gate * MINUS_LOG2_E))  # silu is gate * root**2, which avoids a division
    gate = gate * root * root
    if ROUND:
        gate = gate.to(tl.bfloat16).to(tl.float32)
    _store(codes, scales, (gate * up).to(tl.bfloat16), row, columns, K, CODED)


@triton.jit
def _store(codes, scales, values, row, columns, K: tl.constexpr, CODED: tl.constexpr):
    """Store a row's BF16 values as codes and a scale, or unquantized."""
    inside = columns < K
    if CODED:
        scale, factor = scale_and_factor(largest(values), tl.bfloat16)
        tl.store(codes + row * K + columns, codes_of(values, factor), mask=inside)
        tl.store(scales + row + tl.arange(0, 1), scale)
    else:
        tl.store(codes + row * K + columns, values, mask=inside)


def rms_norm_quantize(
    x_MK: torch.Tensor,
    weight_K: torch.Tensor,
    eps: float,
    residual_MK: torch.Tensor | None = None,
    rounded: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes (M, K) and scales (M, 1) of the RMSNorm of x or x + residual, and that sum in BF16 (or x).

    Args:
        rounded: whether to round to BF16 wherever `exact_ops.rms_norm` rounds, instead of once.
    """
    codes_MK, scale_M1 = outputs(x_MK, x_MK.shape[1])
    return codes_MK, scale_M1, norm_into(codes_MK, scale_M1, x_MK, weight_K, eps, residual_MK, rounded)


def norm_into(
    out_MK: torch.Tensor,
    scale_M1: torch.Tensor | None,
    x_MK: torch.Tensor,
    weight_K: torch.Tensor,
    eps: float,
    residual_MK: torch.Tensor | None,
    rounded: bool,
) -> torch.Tensor:
    """Write codes and scales, or without `scale_M1` the normalized values; return the sum, or x."""
    x_MK = x_MK if x_MK.stride(1) == 1 else x_MK.contiguous()
    rows, columns = x_MK.shape
    total_MK = x_MK if residual_MK is None else torch.empty_like(residual_MK, memory_format=torch.contiguous_format)
    if rows:
        width, early = triton.next_power_of_2(columns), starts_early(x_MK.device)
        with torch.cuda.device_of(x_MK):
            norm_rows[(rows,)](
                x_MK,
                total_MK if residual_MK is None else residual_MK.contiguous(),
                weight_K,
                total_MK,
                out_MK,
                scale_M1,
                x_MK.stride(0),
                eps,
                columns,
                width,
                residual_MK is not None,
                rounded,
                scale_M1 is not None,
                early,
                num_warps=warps_of_norm(width),
                **launch(early),
            )
    return total_MK


def warps_of_norm(width: int) -> int:
    """Return how many warps process a row of RMSNorm."""
    return WARPS.get(width) or min(max(width // PER_WARP, 1), MOST_WARPS)


def silu_mul_quantize(x: torch.Tensor, rounded: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes (M, K) and scales (M, 1) of silu(gate) * up, for x (M, 2 * K) with gate before up.

    Args:
        rounded: whether to round to BF16 wherever `exact_ops.silu_mul` rounds, instead of once.
    """
    x = x if x.stride(1) == 1 else x.contiguous()
    gate_MK, up_MK = x.chunk(2, dim=1)
    codes_MK, scale_M1 = outputs(x, gate_MK.shape[1])
    silu_into(codes_MK, scale_M1, gate_MK, up_MK, rounded)
    return codes_MK, scale_M1


def silu_into(
    out_MK: torch.Tensor, scale_M1: torch.Tensor | None, gate_MK: torch.Tensor, up_MK: torch.Tensor, rounded: bool
) -> None:
    """Write codes and scales, or without `scale_M1` the values, of silu(gate) * up; their rows are contiguous."""
    rows, columns = gate_MK.shape
    if rows:
        (width, warps), early = tiling(columns), starts_early(gate_MK.device)
        with torch.cuda.device_of(gate_MK):
            silu_rows[(rows,)](
                gate_MK, up_MK, out_MK, scale_M1, gate_MK.stride(0), up_MK.stride(0), columns, width, rounded,
                scale_M1 is not None, early, num_warps=warps, **launch(early),
            )  # fmt: skip
