"""`digests` of every kernel module against the oracle."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_quant import oracle

DTYPES = (
    *(torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.bfloat16, torch.float16),
    *(torch.int16, torch.float32, torch.int32, torch.int64, torch.float64),
)
SHAPES = [(), (1,), (300,), (0, 5), (0,), (7, 1), (1, 300), (33, 5), (9, 16), (9, 257), (2, 3, 4), (5, 4, 3, 2)]


def random(shape, dtype, seed):
    """Any bits, but 0 or 1 in a bool."""
    size = torch.Size(shape).numel() * dtype.itemsize
    bits = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return (bits % 2 if dtype == torch.bool else bits).view(dtype).view(shape)


def found(kernels, tensors, *firsts):
    return kernels.module.digests([x.to(kernels.device) for x in tensors], *firsts).tolist()


@st.composite
def tensors(draw):
    """Of any shape, dtype and strides."""
    tensor = random(draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES)), draw(st.integers(0, 2**31)))
    way = draw(st.sampled_from(["plain", "reversed", "sliced"]))
    if way == "sliced" and tensor.dim():
        return tensor[1 if tensor.shape[0] > 1 else 0 :: 2]
    return tensor.permute(tuple(reversed(range(tensor.dim())))) if way == "reversed" else tensor


@settings(deadline=None, max_examples=40)
@given(st.lists(tensors(), min_size=1, max_size=5))
def test_digests_equal_the_oracle(kernels, batch):
    assert found(kernels, batch) == [oracle.digest(tensor) for tensor in batch]


@settings(deadline=None, max_examples=25)
@given(
    st.integers(2, 40),
    st.sampled_from([2, 9, 64, 300, 1100]),
    st.sampled_from([dtype for dtype in DTYPES if dtype.itemsize < 8]),
    st.sampled_from([0, 5, 2**31 - 3, 2**40]),
    st.data(),
)
def test_parts_add_up_to_the_whole(kernels, rows, columns, dtype, first_row, data):
    whole = random((rows, columns), dtype, rows * columns)
    row, column = data.draw(st.integers(1, rows - 1)), data.draw(st.integers(1, columns - 1))
    parts = [part for half in (whole[:row], whole[row:]) for part in (half[:, :column], half[:, column:])]
    first_rows, first_columns = [first_row, first_row, first_row + row, first_row + row], [0, column, 0, column]
    assert oracle.add_digests(*found(kernels, parts, first_rows, first_columns)) == oracle.digest(whole, first_row)


def test_tensors_that_must_be_rearranged_first_do_not_share_memory(kernels):
    batch = [random((3, 5, 4), torch.float32, seed).permute(2, 1, 0) for seed in range(30)]
    assert found(kernels, batch) == [oracle.digest(tensor) for tensor in batch]


@pytest.mark.parametrize("value", [0x80, 0x7F, 0xFF])
@pytest.mark.parametrize(
    ("dtype", "shape"), [(torch.float32, (2, 40000)), (torch.int8, (3, 131073)), (torch.int16, (70000,))]
)
def test_the_largest_sums_are_exact(kernels, dtype, shape, value):
    """Long rows, and long vectors, of bytes that are all alike."""
    size = torch.Size(shape).numel() * dtype.itemsize
    tensor = torch.full((size,), value, dtype=torch.uint8).view(dtype).view(shape)
    assert found(kernels, [tensor]) == [oracle.digest(tensor)]


def test_no_tensors_no_digests(kernels):
    assert kernels.module.digests([]).tolist() == []
