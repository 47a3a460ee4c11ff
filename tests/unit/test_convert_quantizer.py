"""Codes and scales a few rows at a time are the oracle's, bit for bit."""

import pytest
import torch
from convert_cases import QUANTIZED

from ascend_quant import oracle
from ascend_quant.convert import quantizer
from ascend_quant.convert.quantizer import Quantizer
from ascend_quant.convert.workers import one_thread
from ascend_quant.schemes import SCHEMES, definition_of

SHAPES = [(1, 128), (3, 256), (130, 384), (257, 128), (128, 128)]
RAGGED = [(1, 1), (5, 173), (129, 130), (300, 96)]  # K that no block and no group divides


@pytest.fixture(autouse=True, scope="module")
def single():
    """Torch's threads wait for each other after every small operation."""
    with one_thread():
        yield


def awkward(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Rows of many sizes, zeros of both signs, what is too small for a scale, the largest numbers."""
    generator = torch.Generator().manual_seed(sum(shape))
    w_NK = torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-20, 20, (shape[0], 1)).float())
    w_NK[0] = -0.0
    w_NK[shape[0] // 2] = -(2.0**-101)
    w_NK[-1, ::3] = -0.0
    w_NK[-1, -1] = 60000.0
    w_NK[:, 0] *= torch.rand(shape[0], generator=generator) > 0.5
    return w_NK.clamp(-60000, 60000).to(dtype)  # float16 ends a little later


def of(scheme: str, w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes = torch.full(w_NK.shape, 99, dtype=getattr(torch, definition_of(SCHEMES[scheme]).codes_dtype))

    def sink(first: int, part_RK: torch.Tensor) -> None:
        codes[first : first + len(part_RK)] = part_RK

    return codes, Quantizer(SCHEMES[scheme]).quantize(w_NK, sink)


def assert_oracles(scheme: str, w_NK: torch.Tensor) -> None:
    codes, scale = of(scheme, w_NK)
    wanted_codes, wanted_scale = oracle.quantize(w_NK, SCHEMES[scheme])
    assert torch.equal(codes.view(torch.uint8), wanted_codes.view(torch.uint8))
    assert scale.dtype == wanted_scale.dtype
    assert torch.equal(scale.reshape(wanted_scale.shape), wanted_scale)


@pytest.mark.parametrize("elements", [1, 1000, 1 << 20], ids=["row by row", "some rows", "all rows"])
@pytest.mark.parametrize("scheme", QUANTIZED)
def test_codes_and_scales_are_the_oracles(scheme, elements, monkeypatch):
    monkeypatch.setattr(quantizer, "ELEMENTS", elements)
    for shape in SHAPES + ([] if SCHEMES[scheme].group else RAGGED):
        for dtype in (torch.bfloat16, torch.float32, torch.float16):
            assert_oracles(scheme, awkward(shape, dtype))


@pytest.mark.parametrize("scheme", QUANTIZED)
def test_weights_of_zero_have_codes_0_and_what_is_not_finite_shows_in_the_scale(scheme):
    for fill in (-0.0, 2.0**-101):
        assert_oracles(scheme, torch.full((140, 256), fill))
        codes, scale = of(scheme, torch.full((140, 256), fill))
        assert not codes.view(torch.uint8).any() and not scale.any()
    for where, bad in (((0, 0), torch.nan), ((139, 255), torch.inf), ((70, 100), -torch.inf)):
        spoilt = torch.randn(420, 256)[140:280]  # rows of a larger tensor are read where they lie
        assert_oracles(scheme, spoilt)
        spoilt[where] = bad
        assert not of(scheme, spoilt)[1].isfinite().all()
