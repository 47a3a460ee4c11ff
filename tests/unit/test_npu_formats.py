"""Rows written and read by number are where the documented layouts have them, byte by byte."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_quant.kernels.npu.refit.formats import Panels, Transposed


def fractal(w_EKN: torch.Tensor) -> list[int]:
    """The bytes of FRACTAL_NZ by CANN's words: (n1, k1, k0, n0) with k0 = 16 and n0 = 32, experts one after another."""
    experts, length, channels = w_EKN.shape
    panels, blocks = -(-channels // 32), -(-length // 16)
    found = [0] * (experts * panels * blocks * 16 * 32)
    for e, matrix in enumerate(w_EKN.tolist()):
        for k, row in enumerate(matrix):
            for n, value in enumerate(row):
                found[(((e * panels + n // 32) * blocks + k // 16) * 16 + k % 16) * 32 + n % 32] = value
    return found


def transposed(experts, length, channels):
    shape = (length, channels) if experts is None else (experts, length, channels)
    tensor = torch.zeros(shape, dtype=torch.int8)
    return Transposed(tensor), lambda w_EKN: (tensor.flatten().tolist(), w_EKN.flatten().tolist())


def panels(experts, length, channels):
    shape = (length, channels) if experts is None else (experts, length, channels)
    memory = torch.zeros((experts or 1) * -(-channels // 32) * 32 * -(-length // 16) * 16, dtype=torch.int8)
    place = Panels(torch.empty(shape, dtype=torch.int8, device="meta"), memory)
    return place, lambda w_EKN: (memory.tolist(), fractal(w_EKN))


@pytest.mark.parametrize("make", [transposed, panels])
@settings(deadline=None, max_examples=60)
@given(st.none() | st.integers(1, 3), st.integers(1, 40), st.integers(1, 100), st.data())
def test_parts_in_any_order_end_where_they_belong(make, experts, length, channels, data):
    place, bytes_of = make(experts, length, channels)
    rows = (experts or 1) * channels
    w_NK = torch.randint(-127, 128, (rows, length), dtype=torch.int8)
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=5))})
    parts = data.draw(st.permutations(list(pairwise(cuts))))
    for first, end in parts:
        place.write(first, w_NK[first:end])
    found, expected = bytes_of(w_NK.view(experts or 1, channels, length).transpose(1, 2).contiguous())
    assert found == expected
    assert place.shape == w_NK.shape
    first, end = (data.draw(st.integers(0, rows - 1)), rows)
    step = data.draw(st.sampled_from([1, 1, 2, 64]))
    assert torch.equal(place[first:end:step], w_NK[first:end:step])
