"""Elementwise arithmetic in Triton: rounding to BF16, scales, and codes of int8, int4 and float8_e4m3fn.

The codes equal those of IEEE division. For BF16 values, `x / scale` is replaced by a multiplication with a reciprocal
that is nudged off every tie, see `reciprocal`. float32 values are divided.
"""

import torch
import triton
import triton.language as tl

from ascend_quant import oracle

INT8_MAX, FP8_MAX = tl.constexpr(oracle.INT8_MAX), tl.constexpr(oracle.FP8_MAX)
INT8_MIN, INT4_MAX = tl.constexpr(oracle.INT8_MIN), tl.constexpr(oracle.INT4_MAX)
INF_BITS = tl.constexpr(0x7F800000)
LARGEST_INT8_SCALE = tl.constexpr(oracle.largest_scale(torch.int8))
LARGEST_FP8_SCALE = tl.constexpr(oracle.largest_scale(torch.float8_e4m3fn))
MAGIC, MAGIC_BITS = tl.constexpr(12582912.0), tl.constexpr(0x4B400000)  # 1.5 * 2**23: adding it rounds half to even
FP8_MAGIC, FP8_MAGIC_BITS = tl.constexpr(16384.0), tl.constexpr(0x46800000)  # 2**14, whose last bit is 2**-9
FP8_NORMAL_BITS = tl.constexpr(0x3C800000)  # 2**-6
TINY = tl.constexpr(oracle.TINY)
CONVERTS = tl.constexpr(hasattr(tl, "target_info") and not triton.knobs.runtime.interpret)
NUDGE_UP, NUDGE_DOWN = tl.constexpr(1 + 2.0**-20), tl.constexpr(1 - 2.0**-20)


@triton.jit
def magnitude(values):
    """Return |x| as the bits of a float32, which sort like the values, with NaN above Inf above all others."""
    return values.to(tl.int32, bitcast=True) & 0x7FFFFFFF


INTERPRETED = tl.constexpr(not isinstance(magnitude, triton.JITFunction))


@triton.jit
def as_float(part):
    """Convert values to float32; BF16 by integer operations, since Triton's interpreter gets its denormals wrong."""
    if part.dtype == tl.bfloat16:
        return (part.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return part.to(tl.float32)


@triton.jit
def rounded(part):
    """Round float32 values to BF16, half to even (the interpreter truncates); NaN and Inf are kept."""
    values = as_float(part)
    if part.dtype != tl.bfloat16:
        bits = values.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        values = tl.where((bits & 0x7FFFFFFF) > INF_BITS, bits, rounded).to(tl.float32, bitcast=True)
    return values


@triton.jit
def cast(part, TYPE: tl.constexpr):
    """Cast to another dtype; to and from BF16 by integer operations, see `as_float` and `rounded`."""
    if part.dtype == TYPE:
        return part
    elif tl.bfloat16 == TYPE:
        return (rounded(part).to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return as_float(part).to(TYPE)


@triton.jit
def multiply_add(x, y, z):
    """Return x * y + z in float32, rounded once; in float64 under the interpreter, whose fma rounds twice."""
    if INTERPRETED:
        return (x.to(tl.float64) * y.to(tl.float64) + z.to(tl.float64)).to(tl.float32)
    else:
        return tl.fma(x, y, z)


@triton.jit
def bits_of(value, TYPE: tl.constexpr):
    if TYPE.primitive_bitwidth == 32:
        return value.to(tl.int32, bitcast=True)
    elif TYPE.primitive_bitwidth == 16:
        return value.to(tl.int16, bitcast=True)
    else:
        return value.to(tl.int8, bitcast=True)


@triton.jit
def converted(part, scale, factor, KIND: tl.constexpr, TARGET_TYPE: tl.constexpr):
    """Convert elements to their stored form; return it, and its bits as integers."""
    if KIND == "int8":
        bits = (rounded(part) * factor[:, None] + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS
        value = bits.to(tl.int8)
    elif KIND == "int8_float32" or KIND == "int8_static":  # its own scale keeps it within 127
        bits = tl.minimum(tl.maximum(outer_code(part, scale[:, None]), INT8_MIN), INT8_MAX)
        value = bits.to(tl.int8)
    elif KIND == "int8_prequantized" or KIND == "fp8_prequantized":
        value = part
        bits = value
    elif KIND == "copy":
        value = cast(part, TARGET_TYPE)
        bits = bits_of(value, TARGET_TYPE)
    else:
        value = fp8(rounded(part), scale[:, None])
        bits = value
    return value, bits


@triton.jit
def scale_of(bits, KIND: tl.constexpr):
    """Return absmax / 127 (or 448) as float32, correctly rounded.

    The float64 product has a relative error below 2**-52, and the quotient of a BF16 number (8 bits) by 127 or 448 is
    never that close to a float32 tie unless it is one.
    """
    if KIND == "int8_float32":  # absmax has 24 bits
        exact = bits.to(tl.float32, bitcast=True)
        return tl.where(exact < TINY, 0.0, tl.div_rn(exact, tl.full(exact.shape, INT8_MAX * 1.0, tl.float32)))
    absmax = bits.to(tl.float32, bitcast=True).to(tl.float64)
    factor: tl.constexpr = 1.0 / INT8_MAX if KIND == "int8" else 1.0 / FP8_MAX
    return tl.where(absmax < TINY, 0.0, (absmax * factor).to(tl.float32))


@triton.jit
def int4_scale(absmax):
    """Return BF16(absmax / 7) as float32."""
    quotient = tl.div_rn(absmax, tl.full(absmax.shape, INT4_MAX * 1.0, tl.float32))
    return tl.where(absmax < TINY, 0.0, rounded(quotient))


@triton.jit
def int4_code(x, scale):
    """Return int32: quotients rounded half to even, whose magnitudes are at most 7.03; `scale` broadcasts against x."""
    code = (quotient(x, scale) + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS
    return tl.minimum(tl.maximum(code, -INT4_MAX), INT4_MAX)


@triton.jit
def spoilt(scale, KIND: tl.constexpr):
    """Return 1 for a sent scale that quantization cannot produce, see `oracle.spoilt_rows`; 0 for others."""
    largest: tl.constexpr = LARGEST_INT8_SCALE if KIND == "int8_prequantized" else LARGEST_FP8_SCALE
    return ((scale < 0) | (scale > largest) | (magnitude(scale) >= INF_BITS)).to(tl.int32)


@triton.jit
def reciprocal(bits, scale):
    """Return f with round(x * f) = round_half_even(fl(x / scale)) for every BF16 |x| <= absmax.

    127 x / absmax is a tie k + 1/2 only if absmax is 254 * 2**n, whose scale is a power of two and f exact, or if
    |x| = absmax / 2; every other x is at least 1/510 of itself away from one. For that x the correctly rounded
    quotient is 63.5 or more just if absmax / scale >= 127 - 2**-18, and f is moved to its side by 2**-20: more than
    all rounding errors, far less than 1/510.
    """
    wide = scale.to(tl.float64)
    up = bits.to(tl.float32, bitcast=True).to(tl.float64) - 127.0 * wide >= wide * -(2.0**-18)
    plain = tl.div_rn(1.0, scale)
    nudged = plain * tl.where(up, NUDGE_UP, NUDGE_DOWN)
    power_of_two = (scale.to(tl.int32, bitcast=True) & 0x7FFFFF) == 0
    return tl.where(scale == 0, 0.0, tl.where(power_of_two, plain, nudged))


@triton.jit
def quotient(x, scale):
    """Return x / scale by IEEE division, 0 if the scale is 0."""
    return tl.where(scale == 0, 0.0, tl.div_rn(x, tl.where(scale == 0, 1.0, scale)))


@triton.jit
def outer_code(part, scale):
    """Return x / scale rounded half to even, as int32; values out of a code's range become -129 or 128."""
    ratio = tl.minimum(tl.maximum(quotient(as_float(part), scale), INT8_MIN - 1.0), INT8_MAX + 1.0)
    return (ratio + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS


@triton.jit
def lost(part, scale):
    """Return whether an element, divided by a static scale, is out of the range of codes."""
    code = outer_code(part, scale)
    return (code > INT8_MAX) | (code < INT8_MIN) | ((scale == 0) & (as_float(part) != 0))


@triton.jit
def fp8(x, scale):
    """Return float8_e4m3fn codes of BF16 values, as int8 with their bits; `scale` broadcasts against x."""
    if CONVERTS and tl.target_info.cuda_capability_geq(8, 9):
        # one at a time: with pack=4, Triton 3.6 gives other bytes for masked elements
        return tl.inline_asm_elementwise(
            "{ .reg .b16 code; cvt.rn.satfinite.e4m3x2.f32 code, 0f00000000, $1; cvt.u32.u16 $0, code; }",
            "=r,r",
            [quotient_of_bf16(x, scale)],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        ).to(tl.int8)
    else:
        return _fp8_of_ratio(quotient(x, scale))


@triton.jit
def quotient_of_bf16(x, scale):
    """Compute `quotient` in fewer steps, for BF16 values and a scale of a BF16 absmax; its fp8 codes are the same.

    The product with the rounded reciprocal is off by less than two ulp, and an fma computes the remainder. The
    corrected quotient can be wrong only if the true one is next to a float32 tie, which never lies next to a tie
    between two codes: tests/unit/test_kernels_fp8.py tries all mantissas.
    """
    divisor = tl.where(scale == 0, 1.0, scale)
    reciprocal = tl.div_rn(1.0, divisor)
    quotient = x * reciprocal
    rest = tl.fma(quotient, divisor, x * -1.0)  # not its negative, so that -0 stays -0: Triton computes -x as 0 - x
    return tl.where(scale == 0, 0.0, tl.fma(rest, -reciprocal, quotient))


@triton.jit
def _fp8_of_ratio(ratio):
    """Convert float32 to float8_e4m3fn in integers, for GPUs without such an instruction and for the interpreter."""
    ratio = tl.minimum(tl.maximum(ratio, -FP8_MAX * 1.0), FP8_MAX * 1.0)
    bits = ratio.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    denormal = (tl.abs(ratio) + FP8_MAGIC).to(tl.int32, bitcast=True) - FP8_MAGIC_BITS
    code = tl.where(magnitude < FP8_NORMAL_BITS, denormal, normal) | ((bits >> 24) & 0x80)
    return code.to(tl.int8)
