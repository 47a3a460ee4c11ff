"""Writes that go on where another ends are joined to one that does the same."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from write_cases import new_counters

from ascend_quant import oracle
from ascend_quant.kernels import cpu
from ascend_quant.kernels.counters import sampled
from ascend_quant.kernels.writes import CopyWrite, Fp8Write, Int4Write, Int8Write, Job

K = 8


def parts(codes, scale, cuts, whole=None):
    """Writes of consecutive rows of one source, which lies 3 rows further down in it, in columns 2 and on."""
    return [
        Int8Write(
            target=codes[a:b],
            scale=scale[a:b],
            first_row=a,
            weight=5,
            offset=(a + 3) * 20 + 2,
            row_stride=20,
            whole=None if whole is None else ((a + 3) * 20, 20),
        )
        for a, b in pairwise(cuts)
    ]


@pytest.mark.parametrize("whole", [None, 20])
@pytest.mark.parametrize("cuts", [(0, 9), (0, 4, 9), (0, 1, 2, 3, 9), (0, 8, 9)])
def test_joined_writes_write_what_their_parts_would(cuts, whole):
    codes, scale = torch.zeros(9, K, dtype=torch.int8), torch.zeros(9)
    write, *others = parts(codes, scale, cuts, whole)
    for other in others:
        assert write.followed_by(other)
        write = write.joined(other)
    source = torch.randn(14, 20, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    counters = new_counters(torch.device("cpu"), 1)
    cpu.write([Job.of(write, source)], counters)
    absmax = source[3:12].float().abs().amax(-1) if whole else None
    expected, expected_scale = oracle.quantize_weight(source[3:12, 2 : 2 + K], absmax)
    assert torch.equal(codes, expected) and torch.equal(scale, expected_scale)
    digests = oracle.digest(expected), oracle.digest(expected_scale)
    assert counters.read()[1] == oracle.add_digests(*digests, weights=[5, 15])


def test_single_rows_whatever_their_stride_are_joined_in_their_own_place():
    codes, scale = torch.zeros(2, 4, K, dtype=torch.int8), torch.zeros(2, 4)
    first, second = (  # rows of stride 4 * K
        Int8Write(target=codes[:1, i], scale=scale[:1, i], first_row=i, offset=i * K, row_stride=K) for i in (1, 2)
    )
    assert first.followed_by(second)
    source = torch.randn(3, K, generator=torch.Generator().manual_seed(0))
    cpu.write([Job.of(first.joined(second), source)], new_counters(torch.device("cpu"), 1))
    expected, expected_scale = oracle.quantize_weight(source[1:])
    assert torch.equal(codes[0, 1:3], expected) and torch.equal(scale[0, 1:3], expected_scale)
    assert not codes[1].any() and not codes[0, [0, 3]].any() and not scale[1].any()


def test_what_does_not_go_on_is_not_joined():
    codes, scale = torch.zeros(9, K, dtype=torch.int8), torch.zeros(9)
    first, second = parts(codes, scale, (0, 4, 9), whole=20)
    assert first.followed_by(second) and not second.followed_by(first)
    change = {"first_row": 5, "offset": second.offset + 1, "row_stride": 21, "column_stride": 2, "whole": None}
    for name, value in change.items():
        assert not first.followed_by(replace(second, **{name: value})), name
    assert not first.followed_by(replace(second, target=codes[4:, :4]))
    assert not first.followed_by(replace(second, skip_bf16_cast=True))
    assert replace(first, skip_bf16_cast=True).joined(replace(second, skip_bf16_cast=True)).skip_bf16_cast
    static = [replace(one, static_scale=torch.ones(one.rows)) for one in (first, second)]
    assert not static[0].followed_by(static[1])
    wide = torch.zeros(9, 2 * K, dtype=torch.int8)
    assert not replace(first, target=wide[:4, :K]).followed_by(replace(second, target=wide[4:, :K]))


@pytest.mark.parametrize(
    ("kind", "dtype", "more"),
    [
        (Fp8Write, torch.float8_e4m3fn, {"scale": torch.zeros(128), "tensor_rows": (0, 256)}),
        (Fp8Write, torch.float8_e4m3fn, {"scale": torch.zeros(1, 1)}),
        (Int4Write, torch.int8, {"scale": torch.zeros(128, 2, dtype=torch.bfloat16), "group": 8}),
        (CopyWrite, torch.bfloat16, {"edge_block": 0}),
    ],
)
def test_writes_whose_rows_are_not_on_their_own_are_not_joined(kind, dtype, more):
    codes = torch.zeros(256, K, dtype=dtype)
    first, second = (kind(target=codes[a : a + 128], first_row=a, offset=a * K, row_stride=K, **more) for a in (0, 128))
    assert not first.followed_by(second)


def test_only_int8_codes_are_those_of_float32_values():
    codes = torch.zeros(4, K, dtype=torch.float8_e4m3fn)
    for how in ({}, {"skip_bf16_cast": True}, {"static_scale": torch.ones(4)}):
        with pytest.raises(ValueError, match=r"torch\.float8_e4m3fn"):
            Int8Write(target=codes, scale=torch.zeros(4), **how)


@pytest.mark.parametrize(("first_row", "rows"), [(0, 1), (1, 63), (1, 64), (63, 2), (64, 130), (2**33 + 1, 200)])
def test_every_64th_row_of_the_tensor_is_sampled(first_row, rows):
    expected = [row for row in range(rows) if (first_row + row) % 64 == 0]
    assert list(range(rows))[sampled(first_row, rows)] == expected
