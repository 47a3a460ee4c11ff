"""Row sums by int8 products are those of the oracle's definition, computed with Python's integers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_quant import oracle
from ascend_quant.kernels import byte_digest


def product(x_NB: torch.Tensor, w_BJ: torch.Tensor) -> torch.Tensor:
    assert x_NB.dtype == w_BJ.dtype == torch.int8
    sums = x_NB.double() @ w_BJ.double()
    assert sums.abs().max() < 2**31
    return sums.to(torch.int32)


def expected(bits: list[list[int]], first: int) -> list[int]:
    weights = [(1 + (first + c) * oracle.COLUMN_STEP) % 2**32 for c in range(len(bits[0]))]
    return [sum(v * a for v, a in zip(row, weights, strict=True)) % 2**32 for row in bits]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([torch.int8, torch.int16, torch.int32]),
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(0, 2**40),
    st.integers(0, 1000),
)
def test_rows_of_any_integers(dtype, rows, columns, first, seed):
    limits = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(limits.min, limits.max + 1, (rows, columns), generator=generator, dtype=torch.int64).to(dtype)
    values[0, 0], values[-1, -1] = limits.min, limits.max
    found = byte_digest.row_sums(values, first, product)
    assert found.tolist() == expected(values.tolist(), first)


@pytest.mark.parametrize(("dtype", "columns"), [(torch.int8, 70000), (torch.int16, 40000), (torch.float32, 33000)])
def test_long_rows_are_taken_in_parts(dtype, columns):
    values = torch.full((2, columns), -128).to(dtype)
    found = byte_digest.row_sums(values, 3, product)
    assert found.tolist() == expected(oracle.as_integers(values).tolist(), 3)


def test_values_that_are_no_integers_count_by_their_bits():
    values = torch.randn(4, 9).to(torch.bfloat16)[:, ::2]
    bits = values.contiguous().view(torch.int16).tolist()
    assert byte_digest.row_sums(values, 0, product).tolist() == expected(bits, 0)
