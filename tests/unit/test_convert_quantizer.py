"""Codes and scales a few rows at a time are the oracle's, bit for bit, or the device that makes them is refused."""

import pytest
import torch
from convert_cases import QUANTIZED
from naming import line_naming

from ascend_quant import oracle
from ascend_quant.convert import ConvertError, quantizer
from ascend_quant.convert.quantizer import Quantizer, check_device, open_device
from ascend_quant.convert.workers import one_thread
from ascend_quant.schemes import SCHEMES, definition_of

SHAPES = [(1, 128), (3, 256), (130, 384), (257, 128), (128, 128)]
CPU = torch.device("cpu")
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

    return codes, Quantizer(SCHEMES[scheme], CPU).quantize(w_NK, sink)


def assert_oracles(scheme: str, w_NK: torch.Tensor) -> None:
    codes, scale = of(scheme, w_NK)
    wanted_codes, wanted_scale = oracle.quantize(w_NK, SCHEMES[scheme])
    assert torch.equal(codes.view(torch.uint8), wanted_codes.view(torch.uint8))
    assert scale.dtype == wanted_scale.dtype
    assert torch.equal(scale.reshape(wanted_scale.shape), wanted_scale)


@pytest.mark.parametrize("elements", [1, 1000, 1 << 20], ids=["row by row", "some rows", "all rows"])
@pytest.mark.parametrize("scheme", QUANTIZED)
def test_codes_and_scales_are_the_oracles(scheme, elements, monkeypatch):
    monkeypatch.setattr(quantizer, "ELEMENTS", {"cpu": elements})
    for shape in SHAPES + ([] if SCHEMES[scheme].group else RAGGED):
        for dtype in (torch.bfloat16, torch.float32, torch.float16):
            assert_oracles(scheme, awkward(shape, dtype))


@pytest.mark.parametrize("scheme", QUANTIZED)
def test_a_weight_without_a_scale_has_codes_0_and_no_nan(scheme):
    for fill in (0.0, -0.0, 2.0**-101, -(2.0**-126)):
        w_NK = torch.full((140, 256), fill)
        assert_oracles(scheme, w_NK)
        codes, scale = of(scheme, w_NK)
        assert not codes.view(torch.uint8).any() and not scale.any()


@pytest.mark.parametrize("scheme", QUANTIZED)
def test_what_is_not_finite_shows_in_the_scale(scheme):
    w_NK = torch.randn(140, 256)
    assert of(scheme, w_NK)[1].isfinite().all()
    for where, bad in (((0, 0), torch.nan), ((139, 255), torch.inf), ((70, 100), -torch.inf)):
        spoilt = w_NK.clone()
        spoilt[where] = bad
        assert not of(scheme, spoilt)[1].isfinite().all()


def test_rows_of_a_larger_tensor_are_read_where_they_lie():
    stack = torch.randn(3, 140, 256).to(torch.bfloat16)
    assert_oracles("int8", stack.flatten(0, 1)[140:280])
    assert_oracles("fp8_block", stack.flatten(0, 1)[70:200])


def test_a_device_that_agrees_is_taken():
    for scheme in SCHEMES.values():
        if scheme.quantized:
            check_device(open_device("cpu"), scheme)


def test_a_device_that_multiplies_with_a_reciprocal_is_refused(monkeypatch):
    def div(values, divisor, out):
        return torch.mul(values, 1 / divisor, out=out)

    monkeypatch.setattr(quantizer.torch, "div", div)
    with pytest.raises(ConvertError, match=line_naming("cpu", "codes of scheme fp8")):
        check_device(CPU, SCHEMES["fp8"])


def test_a_device_without_fp8_is_refused(monkeypatch):
    def absent(*ignored, **also):
        raise RuntimeError("no kernel for Float8_e4m3fn\nat some line")

    monkeypatch.setattr(quantizer.torch, "div", absent)
    with pytest.raises(ConvertError, match=line_naming("cpu", "fp8: no kernel for Float8_e4m3fn;", "--device cpu")):
        check_device(CPU, SCHEMES["fp8"])


def test_a_device_that_is_not_there_is_refused():
    absent = "npu" if not hasattr(torch, "npu") else "cuda"
    with pytest.raises(ConvertError, match=line_naming(f"no device '{absent}'", "--device cpu")):
        open_device(absent)
