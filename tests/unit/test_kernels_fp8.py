"""The fast quotient of the fp8 kernels, `triton_elements.quotient_of_bf16`, gives the codes of IEEE division.

It needs a GPU's fma, so its arithmetic is repeated here, for every mantissa of a scale and of a value.
"""

import numpy as np
import pytest
import torch
from write_cases import Case, check

from ascend_quant.oracle import FP8_MAX, TINY

TOPS = np.arange(128, 256) * 2.0**-7  # every mantissa of BF16
BELOW = TOPS[None, :] * 2.0 ** -np.arange(0, 21)[:, None]  # from the largest magnitude to far below half a code
DOUBT = np.array([1 - 2.0**-50, 1 + 2.0**-50])  # float64 is not exact either


def codes_of(ratios: np.ndarray) -> np.ndarray:
    """fp8 codes of float32 ratios."""
    clamped = torch.from_numpy(np.minimum(ratios, np.float32(FP8_MAX)))
    return clamped.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def quotients(values: np.ndarray, scale: np.float32) -> np.ndarray:
    """float64 (2, ...): what `quotient_of_bf16` rounds to float32, a little less and a little more."""
    reciprocal = np.float32(1) / scale
    product = values * reciprocal
    assert product.dtype == np.float32
    rest = (product.astype(np.float64) * np.float64(scale) - values).astype(np.float32)
    corrected = product - rest.astype(np.float64) * np.float64(reciprocal)
    return np.multiply.outer(DOUBT, corrected)


@pytest.mark.parametrize("exponent", [-100, -99, -98, -97, -96, -94, -90, -80, -70, -40, 0, 40, 90, 127])
def test_a_corrected_product_gives_the_codes_of_division(exponent):
    for top in TOPS * 2.0**exponent:
        scale = np.float32(top / FP8_MAX)
        values = np.unique(np.minimum(BELOW * 2.0**exponent, top)).astype(np.float32)
        wanted = codes_of(values / scale)
        for found in quotients(values, scale):
            np.testing.assert_array_equal(codes_of(found.astype(np.float32)), wanted)


def test_without_the_correction_codes_are_wrong():
    wrong = 0
    for top in TOPS:
        scale = np.float32(top / FP8_MAX)
        values = np.minimum(BELOW, top).astype(np.float32)
        wrong += (codes_of(values / scale) != codes_of(values * (np.float32(1) / scale))).sum()
    assert wrong > 0


@pytest.mark.parametrize("factor", [1.0, TINY])
@pytest.mark.parametrize("kind", ["fp8", "fp8_tensor", "fp8_blocks"])
def test_every_mantissa_of_values_gets_the_oracles_code(kernels, kind, factor):
    some = TOPS if kind == "fp8" and not kernels.interpreted else TOPS[[5]] if kernels.interpreted else TOPS[[5, 96]]
    for top in some if kind != "fp8" else [some]:  # one scale for all, or one a row
        tops = np.atleast_1d(top)[:, None]
        below = np.minimum(BELOW.reshape(1, -1), tops)
        rows = np.concatenate([tops, below, -below, 0 * tops, -0.0 * tops], axis=1) * factor
        check(kernels, [Case(kind, torch.from_numpy(rows).to(torch.bfloat16))])
