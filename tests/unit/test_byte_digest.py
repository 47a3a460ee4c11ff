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


def expected(values: torch.Tensor, scales: list[int], rows: list[int], first: int) -> int:
    """By Python's integers, from the numbers that the oracle weighs bytes and rows with."""
    raw = oracle.as_bytes(values)
    of_bytes = oracle.byte_weights(first * values.element_size(), raw.shape[1]).tolist()
    of_scale, of_rows = oracle.byte_weights(0, 4).tolist(), oracle.weights_of_rows(torch.tensor(rows)).tolist()
    total = 0
    for row, scale, weight in zip(raw.tolist(), scales, of_rows, strict=True):
        signed = [(scale >> 8 * i & 255 ^ 128) - 128 for i in range(4)]
        found = sum(v * w for v, w in zip(row, of_bytes, strict=True))
        total += weight * (found + 3 * sum(v * w for v, w in zip(signed, of_scale, strict=True)))
    return total % oracle.PRIME


def digest(values, digits_NW, scale=None, first_column=0) -> int:
    """One tensor's, put together from all parts."""
    found = [
        sums
        for bytes_NB in byte_digest.of_rows(values, product, scale, first_column)
        for sums in byte_digest.over_rows(bytes_NB, digits_NW, product)
    ]
    return oracle.add_digests(*byte_digest.put_together(torch.cat(found)))


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
    assert digest(values, byte_digest.row_digits(numbers), scale, first) == expected(
        values, bits, numbers.tolist(), first
    )


@pytest.mark.parametrize(("dtype", "columns"), [(torch.int8, 70000), (torch.int16, 40000), (torch.float32, 33000)])
def test_long_rows_and_the_largest_bytes(dtype, columns):
    values = torch.full((2, columns), -128).to(dtype)
    found = digest(values, byte_digest.row_digits(torch.tensor([0, 9])), first_column=3)
    assert found == expected(values, [0, 0], [0, 9], 3)


def test_many_rows_and_sums_that_add_up():
    values = torch.randn(140000, 1).to(torch.bfloat16)
    digits = byte_digest.row_digits(torch.arange(140000))
    whole = oracle.digest(values)
    assert digest(values, digits) == whole
    parts = [digest(values[part], digits[part]) for part in (slice(0, 99), slice(99, None))]
    assert oracle.add_digests(*parts) == whole


@pytest.mark.parametrize("rows", [3, 70000])
def test_several_tensors_at_once(rows):
    tensors = [torch.randn(rows, 2).to(torch.bfloat16) for _ in range(3)]
    digits = byte_digest.row_digits(torch.arange(rows))
    totals = [0] * 3
    for bytes_NB in byte_digest.of_rows(torch.cat(tensors), product):
        for sums in byte_digest.over_rows(bytes_NB, digits, product, 3):
            totals = list(map(oracle.add_digests, totals, byte_digest.put_together(sums)))
    assert totals == [oracle.digest(tensor) for tensor in tensors]
