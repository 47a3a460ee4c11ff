"""Which operators an NPU quantizes with: a device that gives other bytes with the fused ones is told by its trial."""

import logging
import math

import pytest
import torch

from ascend_quant import oracle
from ascend_quant.kernels import npu, reciprocals
from ascend_quant.kernels.npu.refit import codes as npu_codes
from ascend_quant.kernels.writes import Int8Write, Job

CPU = torch.device("cpu")
norm, fused = npu_codes.absmax_by_norm, npu_codes.codes_fused


@pytest.fixture(autouse=True)
def tried_anew():
    npu_codes.way_of.cache_clear()
    yield
    npu_codes.way_of.cache_clear()


def test_a_right_device_takes_the_fused_operators():
    way = npu_codes.way_of(CPU)
    assert (way.absmax, way.codes, way.elements) == (norm, fused, npu_codes.FUSED_ELEMENTS)


def test_an_engines_defaults_while_it_loads_change_nothing():
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            assert npu_codes.way_of(CPU)[:2] == (norm, fused)
    finally:
        torch.set_default_dtype(torch.float32)


def without(what: float):
    """A norm that does not see NaN (or Inf)."""
    return lambda x: norm(torch.where(x.isnan() if math.isnan(what) else x.isinf(), 1, x))


def elsewhere(place: int):
    """A norm that overlooks what is not finite in one column."""

    def absmax(x_NK):
        x_NK = x_NK.clone()
        x_NK[:, place] = x_NK[:, place].nan_to_num(1, 1, 1)
        return norm(x_NK)

    return absmax


def missing(*args):
    raise RuntimeError("npu_quantize is not in torch_npu 2.7.1")


WRONG_NORMS = {
    "without NaN": without(math.nan),
    "without Inf": without(math.inf),
    "blind in front": elsewhere(0),
    "blind at the end": elsewhere(-1),
    "in float16": lambda x: norm(x.half()),
    "an ulp more": lambda x: (norm(x).float() * (1 + 2.0**-7)).bfloat16(),
    "missing": missing,
}
WRONG_CODES = {
    "a factor a column": lambda x, factor: (x.float() * factor[: x.shape[1]]).round().to(torch.int8),
    "one factor for all": lambda x, factor: (x.float() * factor[0]).round().clamp(-127, 127).to(torch.int8),
    "half away from zero": lambda x, f: ((x.float() * f.unsqueeze(1)).abs().add(0.5).floor() * x.float().sign()).to(
        torch.int8
    ),
    "cut off": lambda x, factor: (x.float() * factor.unsqueeze(1)).to(torch.int8),
    "factors in BF16": lambda x, factor: fused(x, factor.bfloat16().float()),
    "bytes without a sign": lambda x, factor: fused(x, factor).view(torch.uint8),
    "missing": missing,
}


@pytest.mark.parametrize("what", WRONG_NORMS)
def test_a_wrong_norm_is_left_alone_and_said_so_once(monkeypatch, caplog, what):
    monkeypatch.setattr(npu_codes, "absmax_by_norm", WRONG_NORMS[what])
    with caplog.at_level(logging.WARNING):
        assert npu_codes.way_of(CPU) is npu_codes.way_of(CPU)
    assert npu_codes.way_of(CPU).absmax is npu_codes.absmax_by_chain
    assert len(caplog.records) == 1 and "vector_norm" in caplog.text


@pytest.mark.parametrize("what", WRONG_CODES)
def test_wrong_codes_are_left_alone_and_the_bytes_are_the_oracles(monkeypatch, caplog, what):
    monkeypatch.setattr(npu_codes, "codes_fused", WRONG_CODES[what])
    with caplog.at_level(logging.WARNING):
        way = npu_codes.way_of(CPU)
    assert way.codes is reciprocals.codes_of and way.elements == npu_codes.CHAIN_ELEMENTS
    assert len(caplog.records) == 1 and "npu_quantize" in caplog.text
    w_NK = torch.randn(40, 24).bfloat16()
    codes_NK, scale_N, counters = torch.zeros(40, 24, dtype=torch.int8), torch.zeros(40), npu.Counters(CPU)
    npu.write([Job.of(Int8Write.of(w_NK, codes_NK, scale=scale_N), w_NK)], counters)
    wanted, scales = oracle.quantize_weight(w_NK)
    assert torch.equal(codes_NK, wanted) and torch.equal(scale_N, scales)


def test_a_nan_with_a_sign_leads_to_no_place_outside_the_tables():
    absmax_N = torch.tensor([-32704, 0x7FC0, 0x3F80], dtype=torch.int16).view(torch.bfloat16)
    scale_N, factor_N = reciprocals.scale_and_factor(absmax_N)
    assert (
        len(scale_N) == len(factor_N) == 3 and scale_N[1].isnan() and scale_N[2] == oracle.scale_of(torch.ones(()), 127)
    )
