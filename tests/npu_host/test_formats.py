"""FRACTAL_NZ: is the layout the documented one, and does every use that may trip on hardware fail?"""

import pytest
import torch
import torch_npu
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_host import formats, memory

NZ = formats.NZ


def nz(values: torch.Tensor) -> torch.Tensor:
    return torch_npu.npu_format_cast(values.npu(), NZ)


def some(*shape: int) -> torch.Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8)


@settings(max_examples=40, deadline=None)
@given(
    experts=st.integers(0, 3),
    rows=st.integers(1, 40),
    columns=st.integers(1, 70),
    dtype=st.sampled_from([torch.int8, torch.bfloat16]),
)
def test_every_element_is_where_the_layout_says(experts, rows, columns, dtype):
    """Element (k, n) of each matrix is at block (n // C0, k // 16), row k % 16, column n % C0."""
    shape = (experts, rows, columns) if experts else (rows, columns)
    values = torch.randint(-127, 128, shape).to(dtype)
    cast = nz(values)
    width, row_blocks = (32 if dtype == torch.int8 else 16), -(-rows // 16)
    column_blocks = -(-columns // width)
    stored = memory.storage(cast).view(dtype)
    assert stored.numel() == max(experts, 1) * row_blocks * column_blocks * 16 * width
    ranges = (torch.arange(size) for size in (max(experts, 1), rows, columns))
    expert, k, n = torch.meshgrid(*ranges, indexing="ij")
    block = (expert * column_blocks + n // width) * row_blocks + k // 16
    place = (block * 16 + k % 16) * width + n % width
    assert torch.equal(stored[place].view(shape), values)
    assert torch.equal(torch_npu.npu_format_cast(cast, formats.ND).cpu(), values)


def test_what_may_be_done_with_an_nz_tensor():
    values = some(20, 40)
    weight = nz(values)
    assert torch.equal(weight.cpu(), values)
    copy = weight.clone()
    assert torch_npu.get_npu_format(copy) == NZ and torch.equal(copy.cpu(), values)
    address = weight.data_ptr()
    other = some(20, 40)
    weight.copy_(nz(other))
    assert weight.data_ptr() == address and torch.equal(weight.cpu(), other)
    assert torch_npu.npu_format_cast(weight, NZ).data_ptr() == address


def test_casting_in_place_moves_the_tensor():
    weight = some(16, 32).npu()
    address = weight.data_ptr()
    torch_npu.npu_format_cast_(weight, NZ)
    assert torch_npu.get_npu_format(weight) == NZ and weight.data_ptr() != address


@pytest.mark.parametrize(
    "use",
    [
        lambda w: w + 1,
        lambda w: w.float(),
        lambda w: w.abs_(),
        lambda w: w.zero_(),
        lambda w: torch.equal(w, w),
        lambda w: w[0, 0].item(),
        lambda w: torch.cat([w, w]),
        lambda w: w.t().contiguous(),
        lambda w: w[2:].clone(),
        lambda w: w[2:].cpu(),
        lambda w: w[2:].copy_(torch.zeros(18, 40, dtype=torch.int8)),
        lambda w: w.copy_(torch.zeros(20, 40, dtype=torch.int8)),
        lambda w: w.copy_(torch.zeros(20, 40, dtype=torch.int8, device="npu")),
        lambda w: torch.zeros(20, 40, dtype=torch.int8, device="npu").copy_(w),
        lambda w: w.view(40, 20).copy_(nz(some(40, 20))),
    ],
)
def test_what_may_not_be_done_with_an_nz_tensor(use):
    weight = nz(some(20, 40))
    before = memory.storage(weight).clone()
    with pytest.raises(formats.FormatError, match="NZ"):
        use(weight)
    assert torch.equal(memory.storage(weight), before)
