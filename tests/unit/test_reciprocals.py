"""Codes without a division are the oracle's: for every mantissa of the largest magnitude and of a value.

Rows that differ by a power of two behave alike; so with every exponent of a value below that of the largest that can
matter, and some exponents of the largest, this is all.
"""

from importlib import import_module

import pytest
import torch
from write_cases import Case, check

from ascend_quant import oracle
from ascend_quant.kernels import reciprocals
from ascend_quant.kernels.counters import Counters
from ascend_quant.kernels.writes import Fp8Write, Int8Write, Job

GROUPING = "ascend_quant.kernels.cuda.refit.grouping"
BELOW = 10  # |x| < absmax / 2**9 has the code 0


def every_value_up_to_every_magnitude(exponent: int) -> torch.Tensor:
    """(128, ..): a row for each mantissa of the largest magnitude 2**exponent * (128 + m) / 128."""
    mantissas = torch.arange(128, 256, dtype=torch.float64) / 128
    largest = mantissas * 2.0**exponent
    magnitudes = (mantissas[:, None] * 2.0 ** torch.arange(exponent - BELOW + 1, exponent + 1)).flatten()
    rows = torch.cat([magnitudes, -magnitudes, torch.zeros(1)]).repeat(128, 1)
    rows = torch.where(rows.abs() <= largest[:, None], rows, 0.0)
    rows[:, 0] = largest
    return rows.to(torch.bfloat16)


@pytest.mark.parametrize("exponent", [127, 126, 64, 1, 0, -1, -60, -99, -100, -101, -126, -133])
def test_every_pair_of_mantissas_equals_the_oracle(exponent):
    rows = every_value_up_to_every_magnitude(exponent)
    scale, factor = reciprocals.scale_and_factor(rows.abs().amax(-1))
    codes, expected = oracle.quantize_weight(rows)
    assert torch.equal(scale, expected)
    assert torch.equal(reciprocals.codes_of(rows, factor), codes)


@pytest.mark.parametrize("exponent", [127, 60, 0, -80, -99, -100, -101, -120, -126, -133])
def test_every_pair_of_mantissas_in_triton(cuda, monkeypatch, exponent):
    if cuda.interpreted:  # a step of the interpreter costs the same for many elements as for few
        monkeypatch.setattr(
            import_module(GROUPING), "tiling", lambda length, kind: (4096, 128, 1, (("num_warps", 4), ("maxnreg", 64)))
        )
    check(cuda, [Case("int8", every_value_up_to_every_magnitude(exponent))])


@pytest.mark.gpu  # a thousand million pairs
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_every_pair_of_bf16_values_equals_the_oracle(cuda, kind):
    """1,065,402,238 pairs of a row's largest magnitude and a value up to it: all there are, so all ties too."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).to(cuda.device)
    quantize, dtype, write = {
        "int8": (oracle.quantize_weight, torch.int8, Int8Write),
        "fp8": (oracle.quantize_fp8_rows, torch.float8_e4m3fn, Fp8Write),
    }[kind]
    pairs = 0
    for bits in torch.arange(1, 0x7F80, dtype=torch.int16).split(256):
        absmax = bits.view(torch.bfloat16).to(cuda.device)
        known = every.float().abs() <= absmax.float()[:, None]
        rows = torch.where(known, every, absmax[:, None])
        codes, scale = torch.empty(rows.shape, dtype=dtype, device=cuda.device), torch.empty_like(absmax.float())
        counters = Counters(cuda.device)
        cuda.module.write([Job.of(write.of(rows, codes, scale=scale), rows, counters.new_slots())], counters)
        expected, expected_scale = quantize(rows)
        assert torch.equal(codes.view(torch.int8), expected.view(torch.int8)) and torch.equal(scale, expected_scale)
        pairs += int(known.sum())
    assert pairs == 1_065_402_238


@pytest.mark.parametrize("error", [2.0**-22, -(2.0**-22)])
def test_products_may_be_off_by_a_little(error):
    """As on a device whose products are not IEEE's: the codes do not hang on the last bits."""
    rows = every_value_up_to_every_magnitude(0)
    scale, factor = reciprocals.scale_and_factor(rows.abs().amax(-1))
    power_of_two = torch.frexp(scale).mantissa == 0.5
    factor = torch.where(power_of_two, factor, factor * (1 + error))
    assert torch.equal(reciprocals.codes_of(rows, factor), oracle.quantize_weight(rows)[0])


def test_scales_of_every_magnitude_are_the_oracles():
    absmax = torch.arange(32768, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    scale, factor = reciprocals.scale_and_factor(absmax)
    expected = oracle.quantize_rows(absmax.unsqueeze(-1))[1]
    assert torch.equal(scale.view(torch.int32), expected.view(torch.int32))
    assert torch.isfinite(factor).all()


def test_tables_made_while_an_engine_loads():
    """vLLM's default dtype is then the model's, and its default device the accelerator."""
    reciprocals._tables.cache_clear()
    torch.set_default_dtype(torch.bfloat16)
    try:
        test_every_pair_of_mantissas_equals_the_oracle(0)
    finally:
        torch.set_default_dtype(torch.float32)
        reciprocals._tables.cache_clear()


def test_without_the_nudge_some_codes_would_be_wrong(monkeypatch):
    reciprocals._tables.cache_clear()
    monkeypatch.setattr(reciprocals, "NUDGE", 0.0)
    rows = every_value_up_to_every_magnitude(0)
    _, factor = reciprocals.scale_and_factor(rows.abs().amax(-1))
    assert not torch.equal(reciprocals.codes_of(rows, factor), oracle.quantize_weight(rows)[0])
    reciprocals._tables.cache_clear()
