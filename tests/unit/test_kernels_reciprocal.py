"""int8 codes by a reciprocal are those of the oracle's division: for every mantissa of a row's largest and of a value.

Rows that differ by a power of two behave alike; so with every exponent of a value below that of the largest that can
matter, and the exponents of the largest about where rows count as zeros, this is all.
"""

import pytest
import torch
from move_cases import Case, check

from ascend_quant import oracle
from ascend_quant.kernels.moves import Counters, Job, Move

BELOW = 10  # |x| < absmax / 2**9 has the code 0


@pytest.mark.parametrize("exponent", [127, 60, 0, -80, -99, -100, -101, -120, -126, -133])
def test_every_pair_of_mantissas_equals_the_oracle(cuda, monkeypatch, exponent):
    if cuda.interpreted:  # a step of the interpreter costs the same for many elements as for few
        monkeypatch.setattr(
            cuda.module, "tiling", lambda length, kind: (4096, 128, 1, (("num_warps", 4), ("maxnreg", 64)))
        )
    mantissas = torch.arange(128, 256, dtype=torch.float64) / 128
    largest = mantissas * 2.0**exponent
    exponents = 2.0 ** torch.arange(exponent - BELOW + 1, exponent + 1)
    magnitudes = (mantissas[:, None] * exponents).flatten()
    values = torch.cat([magnitudes, -magnitudes]).repeat(128, 1)
    values = torch.where(values.abs() <= largest[:, None], values, 0.0)
    values[:, 0] = largest
    check(cuda, [Case("int8", values.to(torch.bfloat16))])


@pytest.mark.gpu  # a thousand million pairs
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_every_pair_of_bf16_values_equals_the_oracle(cuda, kind):
    """1,065,402,238 pairs of a row's largest magnitude and a value up to it: all there are, so all ties too."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).to(cuda.device)
    quantize, dtype = {
        "int8": (oracle.quantize_weight, torch.int8),
        "fp8": (oracle.quantize_fp8_rows, torch.float8_e4m3fn),
    }[kind]
    pairs = 0
    for bits in torch.arange(1, 0x7F80, dtype=torch.int16).split(256):
        absmax = bits.view(torch.bfloat16).to(cuda.device)
        known = every.float().abs() <= absmax.float()[:, None]
        rows = torch.where(known, every, absmax[:, None])
        codes, scale = torch.empty(rows.shape, dtype=dtype, device=cuda.device), torch.empty_like(absmax.float())
        counters = Counters(cuda.device)
        cuda.module.write([Job.of(Move.of(rows, codes, scale), rows, counters.new_slots())], counters)
        expected, expected_scale = quantize(rows)
        assert torch.equal(codes.view(torch.int8), expected.view(torch.int8)) and torch.equal(scale, expected_scale)
        pairs += int(known.sum())
    assert pairs == 1_065_402_238
