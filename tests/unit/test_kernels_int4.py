"""Where int4 codes lie, against vLLM's own packing; and writes into these layouts, against the oracle."""

from itertools import pairwise

import pytest
import torch
from write_cases import awkward_values, new_counters

from ascend_quant import oracle
from ascend_quant.kernels.counters import SAMPLE
from ascend_quant.kernels.int4_layouts import MarlinTiles, PackedRows
from ascend_quant.kernels.writes import Int4Write, Job

LAYOUTS = [PackedRows, MarlinTiles]
SHAPES = [(128, 64), (3, 192, 256)]


def some_codes(shape, seed=0):
    return torch.randint(-8, 8, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("length", "group"), [(256, 128), (256, 32), (128, 128)])
def test_marlin_tiles_are_vllms(length, group):
    reference = pytest.importorskip("vllm.model_executor.layers.quantization.utils.marlin_utils_test")
    from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_permute_scales

    codes_NK = some_codes((192, length))
    layout = MarlinTiles((192, length), group)
    layout.write(0, codes_NK)
    unsigned_KN = (codes_NK.T + 8).int()
    expected = reference.marlin_weights(unsigned_KN, length, 192, 4, reference.get_weight_perm(4))
    assert torch.equal(layout.tensor, expected)
    scales = torch.randn(192, length // group).bfloat16()
    layout.scales.copy_(scales)
    layout.refresh()
    assert torch.equal(layout.served_scales, marlin_permute_scales(scales.T.contiguous(), length, 192, group))
    assert torch.equal(layout.scales, scales)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_read_back_as_they_were_written(kind, shape):
    layout = kind(shape, 32)
    expected = some_codes(shape).flatten(0, -2)
    assert layout.shape == expected.shape and (layout[:].unique() + 8 == 0).all()  # words of zeros
    cuts = [0, 64, 70, 71, 128, len(expected)]
    for first, last in sorted(pairwise(cuts), reverse=True):
        layout.write(first, expected[first:last])
    assert torch.equal(layout[:], expected)
    assert torch.equal(layout[5:100:9], expected[5:100:9])
    assert layout[7:7].shape == (0, shape[-1])
    again = kind(shape, 32)
    again.write(0, expected)
    assert torch.equal(again.tensor, layout.tensor)


def test_marlin_takes_whole_tiles_only():
    with pytest.raises(ValueError, match="96 output and 64 input channels"):
        MarlinTiles((96, 64), 32)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("length", "group"), [(256, 32), (256, 128), (128, 128), (96, 32)])
def test_writes_into_layouts_equal_the_oracle(kernels, kind, dtype, length, group):
    values = awkward_values(128, length, dtype, group)
    codes, scale = oracle.quantize_groups(values, group)
    layout = kind((2, 128, length), group, kernels.device)
    layout.write(0, torch.zeros(256, length, dtype=torch.int8, device=kernels.device))
    source = values.to(kernels.device)
    stand_in = torch.empty(128, length, dtype=torch.int8, device="meta")
    scales = layout.scales.flatten(0, 1)[128:]
    where = {"first_row": 128, "weight": 5, "layout": layout}
    write = Int4Write.of(source, stand_in, scale=scales, group=group, **where)
    counters = new_counters(kernels.device, 1, kernels.module.Counters)
    kernels.module.write([Job.of(write, source)], counters)
    changed, digest, bad = counters.read()
    assert torch.equal(layout[128:].cpu(), codes) and torch.equal(layout.scales[1].cpu(), scale)
    assert not layout[:128].any() and not layout.scales[0].any()
    assert bad == {} and changed == int((codes[::SAMPLE] != 0).sum())
    expected = [oracle.digest(codes, 128), oracle.digest(scale, 128)]
    assert digest == oracle.add_digests(*expected, weights=[5, 15])
    found = kernels.module.digests([layout, layout.scales]).tolist()
    zeros = oracle.digest(torch.zeros(128, length, dtype=torch.int8))
    assert found[0] == oracle.add_digests(zeros, expected[0])


def test_what_is_not_finite_is_counted(kernels):
    values = torch.ones(128, 64)
    values[3, 4], values[100, 60] = float("nan"), float("inf")
    layout = PackedRows((128, 64), 32, kernels.device)
    stand_in = torch.empty(128, 64, dtype=torch.int8, device="meta")
    source = values.to(kernels.device)
    counters = new_counters(kernels.device, 1, kernels.module.Counters)
    write = Int4Write.of(source, stand_in, scale=layout.scales, layout=layout, group=32)
    kernels.module.write([Job.of(write, source)], counters)
    assert counters.read()[2] == {0: 2}
