"""int8 codes by a reciprocal are those of the oracle's division: for every mantissa of a row's largest and of a value.

Rows that differ by a power of two behave alike as long as nothing is denormal; so with every exponent of a value below
that of the largest that can matter, and the exponents of the largest where scales or values get denormal, this is all.
"""

import pytest
import torch
from move_cases import Case, check

BELOW = 10  # |x| < absmax / 2**9 has the code 0


@pytest.mark.parametrize("exponent", [127, 60, 0, -80, -117, -118, -119, -120, -121, -125, -126, -127, -130, -133])
def test_every_pair_of_mantissas_equals_the_oracle(cuda, monkeypatch, exponent):
    if cuda.interpreted:  # a step of the interpreter costs the same for many elements as for few
        monkeypatch.setattr(cuda.module, "tiling", lambda length: (4096, 128, 1, 4, 64))
    mantissas = torch.arange(128, 256, dtype=torch.float64) / 128
    largest = mantissas * 2.0**exponent
    exponents = 2.0 ** torch.arange(exponent - BELOW + 1, exponent + 1)
    magnitudes = (mantissas[:, None] * exponents).flatten()
    values = torch.cat([magnitudes, -magnitudes]).repeat(128, 1)
    values = torch.where(values.abs() <= largest[:, None], values, 0.0)
    values[:, 0] = largest
    check(cuda, [Case("int8", values.to(torch.bfloat16))])
