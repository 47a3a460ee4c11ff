"""The operators of a fused refit, called plainly, against the oracle: absmax, codes, digests, panels.

A refit that is as cheap as the memory allows takes a row's largest magnitude by one norm, its codes by one
npu_quantize, the sums of a digest by one product, and writes the panels of many experts by one copy. Each is asked here
by itself, and with what it may get wrong in silence: an axis that is dropped, a NaN that a maximum does not see.
"""

import torch

from ascend_quant import oracle
from ascend_quant.kernels import reciprocals
from ascend_quant.kernels.npu_formats import FRACTAL_NZ, ND, PANEL
from npu_smoke import data
from npu_smoke.checks import IN_SHORT, Setting, check, require
from npu_smoke.compare import difference, require_equal
from npu_smoke.layout import _alias

LENGTHS = (1, 48, 3584, 18944)
EXPONENTS = (-120, -17, -7, 0, 96)  # of the largest magnitude of a row, as a power of two
DEPTH_OF_CODES = 10  # powers of two below it in which a value may have another code than 0
BAD = (float("nan"), float("inf"), float("-inf"))
NO_INF_NAN = {"INF_NAN_MODE_ENABLE": "0", "INF_NAN_MODE_FORCE_DISABLE": "1"}


@check("fused.per_head", needed=False, claim="fused")
def per_head(on: Setting, numbers: dict) -> None:
    """Does npu_quantize with axis=-2 give the oracle's codes, for each mantissa and all values below it?"""
    for exponent in EXPONENTS[1:3] if on.small else EXPONENTS:
        x_NK = _all_below(exponent)
        codes, scales = oracle.quantize_weight(x_NK)
        factor_N = _factors(x_NK)
        require_equal(_per_head(on, x_NK, factor_N), codes, numbers, f"mantissas at 2**{exponent}")
        x_NK[:, 1::2] *= -1
        require_equal(
            _per_head(on, x_NK, factor_N), oracle.quantize_weight(x_NK)[0], numbers, f"signs at 2**{exponent}"
        )
        require(bool((scales > 0).all()), f"2**{exponent} has rows without a scale")


@check("fused.axis", needed=False, claim="fused")
def axis(on: Setting, numbers: dict) -> None:
    """Are rows multiplied by their own factors, where the matrix is square and an axis that is dropped goes unseen?"""
    x_NK = data.weights(64, 64, seed=81) * (2.0 ** torch.arange(-8, 8).repeat_interleave(4))[:, None].to(torch.bfloat16)
    codes, _ = oracle.quantize_weight(x_NK)
    found = _per_head(on, x_NK, _factors(x_NK))
    numbers["as rows"] = apart = difference(found, codes)
    by_columns = (x_NK.float() * _factors(x_NK)).round().clamp(-128, 127).to(torch.int8)
    numbers["as columns"] = difference(found, by_columns)
    dropped = " and are those of axis=-1: the axis is dropped" if not numbers["as columns"]["differ"] else ""
    require(not apart["differ"], f"{apart['differ']} of {apart['of']} codes differ{dropped}")


@check("fused.zeros", needed=False, claim="fused")
def zeros(on: Setting, numbers: dict) -> None:
    """Are the codes of rows of zeros zeros, and those of the smallest and largest magnitudes the oracle's?"""
    x_NK = data.awkward(64, 96, seed=82)
    require_equal(_per_head(on, x_NK, _factors(x_NK)), oracle.quantize_weight(x_NK)[0], numbers, "codes")


@check("fused.norm_inf", needed=False, claim="fused")
def norm_inf(on: Setting, numbers: dict) -> None:
    """Is vector_norm(inf) of a row its largest BF16 magnitude, and not finite where the row is not?"""
    _norms(on, numbers, _by_norm)


@check("fused.norm_inf_saturated", needed=False, variables=NO_INF_NAN)
def norm_inf_saturated(on: Setting, numbers: dict) -> None:
    """The same, with INF_NAN_MODE_ENABLE=0?"""
    _norms(on, numbers, _by_norm)


@check("fused.amax_amin", needed=False)
def amax_amin(on: Setting, numbers: dict) -> None:
    """The same, by the maximum of amax and -amin, should the norm be wrong?"""
    _norms(on, numbers, _by_both_ends)


@check("fused.amax_amin_saturated", needed=False, variables=NO_INF_NAN)
def amax_amin_saturated(on: Setting, numbers: dict) -> None:
    """The same, with INF_NAN_MODE_ENABLE=0?"""
    _norms(on, numbers, _by_both_ends)


@check("fused.xor", needed=False, claim="fused")
def xor(on: Setting, numbers: dict) -> None:
    """Does bitwise_xor of int16 and int32 make signed bytes of low ones?"""
    made = torch.randint(-(2**31), 2**31, (512, 48), generator=data.generator(83), dtype=torch.int64).to(torch.int32)
    for values, mask in ((made, 0x00808080), (made.view(torch.int16), 0x0080)):
        name = str(values.dtype).removeprefix("torch.")
        require_equal(on.put(values) ^ mask, values ^ mask, numbers, name)
        require_equal(
            (on.put(values) ^ mask).view(torch.int8), (values ^ mask).view(torch.int8), numbers, f"{name}, bytes"
        )


@check("fused.digest", needed=False, claim="fused")
def digest(on: Setting, numbers: dict) -> None:
    """Are npu_quant_matmul's int32 sums of codes exact for the longest rows?"""
    product = data.operator("npu_quant_matmul")
    for rows, length in ((64, 128),) if on.small else ((4096, 3584), (3584, 18944), (512, 65535)):
        made = data.generator(84)
        codes, digits = (
            torch.randint(-127, 128, shape, generator=made, dtype=torch.int8)
            for shape in ((rows, length), (length, 16))
        )
        one = torch.ones(1, device=on.device)
        found = product(on.put(codes), on.put(digits), one, output_dtype=torch.int32)
        expected = (codes.double() @ digits.double()).to(torch.int32)
        require_equal(found, expected, numbers, f"{rows} x {length}")


@check("fused.panels_of_experts", needed=False, claim="fused")
def panels_of_experts(on: Setting, numbers: dict) -> None:
    """Does one copy write the FRACTAL_NZ panels of several experts?"""
    for experts, rows, length in ((3, 64, 48),) if on.small else ((3, 64, 48), (16, 1536, 2048)):
        made = torch.randint(-127, 128, (experts, rows, length), generator=data.generator(85), dtype=torch.int8)
        empty = torch.zeros(experts, length, rows, dtype=torch.int8)
        weight = data.operator("npu_format_cast")(on.put(empty), FRACTAL_NZ)
        address, memory_PKC = weight.data_ptr(), _alias(weight).view(-1, length, PANEL)
        some = slice(rows // PANEL, 2 * rows // PANEL)  # the second expert's, then all
        for part in (some, slice(0, len(memory_PKC))):
            source = made.view(-1, length)[part.start * PANEL : part.stop * PANEL]
            memory_PKC[part].copy_(on.put(source).view(-1, PANEL, length).transpose(1, 2))
        found = data.operator("npu_format_cast")(weight, ND)
        require_equal(found, made.transpose(1, 2).contiguous(), numbers, f"{experts} x {rows} x {length}")
        require(weight.data_ptr() == address, "the weight moved")


def _all_below(exponent: int) -> torch.Tensor:
    """BF16 (128, K): the largest of each row has another mantissa; behind it all values down to those of code 0."""
    mantissas = 1 + torch.arange(128).double() / 128
    below = (mantissas[None] * 2.0 ** -torch.arange(DEPTH_OF_CODES).double()[:, None]).flatten()
    largest = mantissas * 2.0**exponent
    x_NK = (below * 2.0**exponent).repeat(128, 1)
    x_NK = torch.where(x_NK <= largest[:, None], x_NK, x_NK / 2)
    return torch.cat([largest[:, None], largest[:, None] / 2, x_NK], dim=1).to(torch.bfloat16)


def _factors(x_NK: torch.Tensor) -> torch.Tensor:
    """float32 (N), made on the host."""
    return reciprocals.scale_and_factor(x_NK.abs().amax(1))[1]


def _per_head(on: Setting, x_NK: torch.Tensor, factor_N: torch.Tensor) -> torch.Tensor:
    """Codes by one call."""
    quantize = data.operator("npu_quantize")
    return quantize(on.put(x_NK).float(), on.put(factor_N), None, torch.qint8, axis=-2, div_mode=False)


def _by_norm(x_NK: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x_NK, float("inf"), dim=1)


def _by_both_ends(x_NK: torch.Tensor) -> torch.Tensor:
    return torch.maximum(x_NK.amax(1), -x_NK.amin(1))


def _norms(on: Setting, numbers: dict, norm) -> None:
    """Of all magnitudes, and of rows with a value that is not finite at their beginning, middle and end."""
    finite = torch.arange(0x7F80, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    both = torch.stack([finite, -finite.flip(0)], dim=1)
    require_equal(norm(on.put(both)), both.abs().amax(1), numbers, "all magnitudes")
    unseen = []
    for length in LENGTHS[:2] if on.small else LENGTHS:
        plain = data.weights(4, length, seed=86)
        require_equal(norm(on.put(plain)), plain.abs().amax(1), numbers, f"rows of {length}")
        for value in BAD:
            for place in sorted({0, length // 2, length - 1}):
                x_NK = plain.clone()
                x_NK[2, place] = value
                found = norm(on.put(x_NK)).cpu()
                if bool(found[2].isfinite()):
                    unseen.append(f"{value} at {place} of {length}: {float(found[2]):.3g}")
                require(bool(found[[0, 1, 3]].isfinite().all()), f"{value} at {place} of {length} spoils other rows")
    numbers["not seen"] = unseen
    numbers[IN_SHORT] = f"{len(unseen)} not seen" if unseen else "every NaN and Inf is seen"
    require(not unseen, f"not seen: {'; '.join(unseen[:6])}")
