"""Fake quantization in Triton: dequantize(quantize(w)) in one pass over the weight; a program takes a few rows.

An int4 group is treated as a short row, since groups of a weight's row share nothing. int8 rows longer than WIDTH are
read twice, the second time from the cache.
"""

import torch
import triton
import triton.language as tl

from ascend_quant import oracle
from ascend_quant.kernels.cuda import triton_elements as elements
from ascend_quant.kernels.cuda.refit.triton_entries import loaded
from ascend_quant.schemes import Scheme

INT4_MAX, INT8_MAX = tl.constexpr(oracle.INT4_MAX), tl.constexpr(oracle.INT8_MAX)
TINY, MAGIC, MAGIC_BITS = elements.TINY, elements.MAGIC, elements.MAGIC_BITS

WIDTH = 4096
TILE = 4096  # elements per program, if several rows fit
TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@triton.jit
def fake_quantize_rows(
    source,
    target,
    absmax,  # float32 absmax of the whole rows, if GIVEN
    count,
    LENGTH: tl.constexpr,
    WIDTH: tl.constexpr,  # a row is walked in steps of WIDTH
    ROWS: tl.constexpr,  # rows at a time
    INT4: tl.constexpr,
    GIVEN: tl.constexpr,
    TARGET_TYPE: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = rows < count
    columns = tl.arange(0, WIDTH)
    at = source + rows[:, None] * LENGTH
    if GIVEN:
        top = tl.load(absmax + rows, mask=valid, other=0.0)
    else:
        widest = tl.zeros((ROWS, WIDTH), tl.float32)
        for first in tl.static_range(0, LENGTH, WIDTH):
            part = loaded(at, 1, valid, first + columns, LENGTH, "evict_last")
            magnitude = tl.abs(elements.rounded(part))
            widest = tl.maximum(widest, magnitude, propagate_nan=tl.PropagateNan.ALL)
        # as integers, magnitudes sort like the values, with NaN above all of them
        top = tl.max(widest.to(tl.int32, bitcast=True), 1).to(tl.float32, bitcast=True)
    largest: tl.constexpr = INT4_MAX if INT4 else INT8_MAX
    scale = tl.where(top < TINY, 0.0, tl.div_rn(top, tl.full((ROWS,), largest * 1.0, tl.float32)))
    if INT4:
        scale = elements.rounded(scale)
    for first in tl.static_range(0, LENGTH, WIDTH):
        part = loaded(at, 1, valid, first + columns, LENGTH, "evict_last")
        value = _value(elements.rounded(part), scale[:, None], largest, INT4)
        inside = valid[:, None] & (first + columns < LENGTH)[None, :]
        to = target + rows[:, None] * LENGTH + (first + columns)[None, :]
        tl.store(to, elements.cast(value, TARGET_TYPE), mask=inside)


@triton.jit
def _value(x, scale, LARGEST: tl.constexpr, INT4: tl.constexpr):
    """Return code * scale as float32; not finite if the scale is not."""
    ratio = tl.minimum(tl.maximum(elements.quotient(x, scale), -LARGEST * 1.0), LARGEST * 1.0)
    code = (ratio + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS
    value = code.to(tl.float32) * scale
    if INT4:
        value = elements.rounded(value)
    return value


def fake_quantize(w_NK: torch.Tensor, scheme: Scheme, absmax_N: torch.Tensor | None = None) -> torch.Tensor:
    """Compute the bytes of `fallbacks.fake_quantize`; a weight that is not contiguous is copied first.

    Raises:
        ValueError: K is not a multiple of the scheme's group, or the dtype has no kernel.
    """
    w_NK = w_NK.detach().contiguous()
    if w_NK.dtype not in TYPES:
        raise ValueError(f"fake quantization of {w_NK.dtype} is not supported; supported: {', '.join(map(str, TYPES))}")
    out_NK = torch.empty_like(w_NK)
    constants = constants_of(w_NK.shape[-1], scheme, TYPES[w_NK.dtype], given=absmax_N is not None)
    if out_NK.numel() == 0:
        return out_NK
    count = w_NK.numel() // constants["LENGTH"]
    absmax_N = w_NK if absmax_N is None else absmax_N.contiguous()  # a placeholder pointer, which is not read
    with torch.cuda.device_of(w_NK):
        fake_quantize_rows[(triton.cdiv(count, constants["ROWS"]),)](w_NK, out_NK, absmax_N, count, **constants)
    return out_NK


def constants_of(columns: int, scheme: Scheme, target: tl.dtype, given: bool) -> dict[str, object]:
    """Return the compile-time constants of the fake quantization kernel, for rows of K elements or their groups."""
    if scheme.group and columns % scheme.group:
        raise ValueError(f"rows of {columns} elements are not divisible into int4 groups of {scheme.group}")
    length = scheme.group or columns
    width = min(WIDTH, triton.next_power_of_2(length))
    shape = {"LENGTH": length, "WIDTH": width, "ROWS": max(1, TILE // width)}
    return {**shape, "INT4": scheme.codes == "int4", "GIVEN": given, "TARGET_TYPE": target}
