"""npu_quant_matmul against the oracle: both formats, biases, outputs, numbers of tokens."""

from typing import Any

import torch

from npu_smoke import data
from npu_smoke.checks import IN_SHORT, Setting, check, require
from npu_smoke.compare import difference, require_equal
from npu_smoke.data import Tokens

UNITS = "worst, in units"
WORST = 1  # unit in the last place of the output: float32 products may be taken in another order, rounded once more
TOKENS = (1, 16, 256)


def _shapes(on: Setting) -> list[tuple[int, int]]:
    """(N, K): the merged attention projection and the down projection of a 7B model."""
    return [(96, 64)] if on.small else [(4608, 3584), (3584, 18944)]


@check("products.int32", claim="receipts")
def int32(on: Setting, numbers: dict) -> None:
    """Are int32 products exact? Our digest is made of them."""
    for rows, length in (
        ((100, 333), (1, 1), (16, 4096)) if on.small else ((100, 333), (1, 1), (16, 65535), (4096, 3584))
    ):
        x_MK, w_KJ = (
            torch.randint(-128, 128, shape, generator=data.generator(41), dtype=torch.int8)
            for shape in ((rows, length), (length, 16))
        )
        expected = (x_MK.double() @ w_KJ.double()).to(torch.int32)
        one = torch.ones(1, device=on.device)
        found = data.operator("npu_quant_matmul")(on.put(x_MK), on.put(w_KJ), one, output_dtype=torch.int32)
        require_equal(found, expected, numbers, f"{rows} x {length} x 16")


@check("products.nd", claim="rule")
def nd(on: Setting, numbers: dict) -> None:
    """Are npu_quant_matmul's results the oracle's to 1 unit in the last place, plain weights?"""
    for shape in _shapes(on):
        _linear(on, numbers, shape, nz=False)


@check("products.nz", claim="rule")
def nz(on: Setting, numbers: dict) -> None:
    """The same, FRACTAL_NZ weights?"""
    for shape in _shapes(on):
        _linear(on, numbers, shape, nz=True)


@check("products.fp16", claim="rule")
def fp16(on: Setting, numbers: dict) -> None:
    """The same, float16 results?"""
    for shape in _shapes(on)[:1]:
        _linear(on, numbers, shape, nz=True, dtype=torch.float16)


@check("products.unaligned", needed=False, claim="rule")
def unaligned(on: Setting, numbers: dict) -> None:
    """The same, FRACTAL_NZ where K is no multiple of 16 or N none of 32?"""
    for shape in ((72, 40), (64, 40), (72, 48)):
        _linear(on, numbers, shape, nz=True)


def _linear(on: Setting, numbers: dict, shape: tuple[int, int], nz: bool, dtype: torch.dtype = torch.bfloat16) -> None:
    """Every kind of output that the engine asks for."""
    rows, length = shape
    made = data.generator(42)
    codes_NK = torch.randint(-127, 128, shape, generator=made, dtype=torch.int8)
    scale_N = torch.rand(rows, generator=made) * 2e-4 + 1e-4
    bias_N = torch.randn(rows, generator=made).to(dtype)
    w_KN = data.transposed(codes_NK, on, nz)
    kinds = {"": (scale_N, None), ", bias": (scale_N, bias_N)}
    if dtype == torch.bfloat16:
        kinds[", bf16 scales"] = (scale_N.to(dtype), None)
    for count in TOKENS:
        tokens = Tokens.of(count, length, seed=43)
        sums_MN = tokens.sums(codes_NK).float()
        for kind, (scale, bias) in kinds.items():
            found = data.operator("npu_quant_matmul")(
                on.put(tokens.codes_MK),
                w_KN,
                on.put(scale),
                pertoken_scale=on.put(tokens.scale_M),
                bias=None if bias is None else on.put(bias),
                output_dtype=dtype,
            )
            expected = _expected(sums_MN, tokens.scale_M, scale, bias)
            name = f"{count} x {length} x {rows}{kind}"
            note_products(found, [one.to(dtype) for one in expected], numbers, name)
    require_near(numbers)


def _expected(sums_MN, scale_M, scale_N, bias_N) -> list[torch.Tensor]:
    """float32: the oracle's order of products, and the other one."""
    tokens_M1, scale_N = scale_M.unsqueeze(1), scale_N.float()
    bias = 0.0 if bias_N is None else bias_N.float()
    return [sums_MN * tokens_M1 * scale_N + bias, sums_MN * scale_N * tokens_M1 + bias]


def note_products(found: torch.Tensor, expected: list[torch.Tensor], numbers: dict[str, Any], name: str) -> None:
    """Note how far a product is from both orders of float32 products, in units in the last place.

    Where a bias cancels a product, float32's own error shows: a unit is at least 2**-20 of the largest result.
    """
    oracles, other = (difference(found, one) for one in expected)
    exact, got = expected[0].float(), found.cpu().float()
    unit = (torch.finfo(found.dtype).eps * exact.abs()).clamp(min=float(exact.abs().max()) * 2.0**-20)
    off = ((got - exact).abs() / unit).nan_to_num(nan=float("inf"))
    numbers[name] = {**oracles, "differ from the other order": other["differ"], UNITS: float(off.max())}


def require_near(numbers: dict[str, Any]) -> None:
    """Raise Wrong if a product that was noted is off by more than WORST."""
    noted = [(name, one) for name, one in numbers.items() if isinstance(one, dict) and UNITS in one]
    texts = [
        f"{name}: off by {one[UNITS]:.3g} units in the last place, {one['differ']} of {one['of']} differ"
        for name, one in noted
        if one[UNITS] > WORST
    ]
    differ, of = (sum(one[what] for _, one in noted) for what in ("differ", "of"))
    numbers[IN_SHORT] = f"{differ} of {of} differ from the oracle"
    require(not texts, "; ".join(texts))
