"""Digests by int8 products are those of the oracle's definition, computed with Python's integers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_quant import oracle
from ascend_quant.kernels import byte_digest


def product(x_NB: torch.Tensor, w_BJ: torch.Tensor) -> torch.Tensor:
    assert x_NB.dtype == w_BJ.dtype == torch.int8 and x_NB.is_contiguous() and w_BJ.is_contiguous()
    assert x_NB.shape[1] <= 65535 and w_BJ.shape[1] == byte_digest.WIDTH
    sums = x_NB.double() @ w_BJ.double()
    assert sums.abs().max() < 2**31
    return sums.to(torch.int32)


def mixed(row: int, seed: int) -> int:
    number = row * seed % 2**32
    return (number ^ number >> 16) * oracle.ROW_MIX % 2**32 | 1


def expected(bits: list[list[int]], scales: list[int], rows: list[int], first: int) -> tuple[int, int]:
    a = [(1 + (first + c) * oracle.COLUMN_STEP) % 2**32 for c in range(len(bits[0]))]
    sums = [sum(v * w for v, w in zip(row, a, strict=True)) + 3 * s for row, s in zip(bits, scales, strict=True)]
    low, high = (sum(d * mixed(r, seed) for d, r in zip(sums, rows, strict=True)) for seed in oracle.ROW_SEEDS)
    return low % 2**32, high % 2**32


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([torch.int8, torch.int16, torch.int32]),
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(0, 2**40),
    st.booleans(),
    st.integers(0, 1000),
)
def test_integers_of_any_width(dtype, rows, columns, first, has_scale, seed):
    limits = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(limits.min, limits.max + 1, (rows, columns), generator=generator, dtype=torch.int64).to(
        dtype
    )
    values[0, 0], values[-1, -1] = limits.min, limits.max
    numbers = torch.randint(0, 2**40, (rows,), generator=generator)
    scale = torch.randn(rows, generator=generator) if has_scale else None
    bits = scale.view(torch.int32).tolist() if has_scale else [0] * rows
    found = byte_digest.sums(values, scale, byte_digest.row_digits(numbers), product, first)
    assert byte_digest.lanes(found) == expected(values.tolist(), bits, numbers.tolist(), first)


@pytest.mark.parametrize(("dtype", "columns"), [(torch.int8, 70000), (torch.int16, 40000), (torch.float32, 33000)])
def test_long_rows_and_the_largest_bytes(dtype, columns):
    values = torch.full((2, columns), -128).to(dtype)
    found = byte_digest.sums(values, None, byte_digest.row_digits(torch.tensor([0, 9])), product, 3)
    assert byte_digest.lanes(found) == expected(oracle.as_integers(values).tolist(), [0, 0], [0, 9], 3)


def test_many_rows_and_sums_that_add_up():
    values = torch.randn(140000, 1).to(torch.bfloat16)
    digits = byte_digest.row_digits(torch.arange(140000))
    whole = byte_digest.sums(values, None, digits, product)
    low, high = byte_digest.lanes(whole)
    assert low + (high << 32) == oracle.digest(values)
    parts = [byte_digest.sums(values[part], None, digits[part], product) for part in (slice(0, 99), slice(99, None))]
    assert byte_digest.lanes(parts[0] + parts[1]) == (low, high)
