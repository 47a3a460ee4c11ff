"""Resident weights whose scales are shared by tensors, blocks or groups: whatever the shards, the oracle's bytes."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_quant import oracle
from ascend_quant.kernels.int4_layouts import MarlinTiles, PackedRows
from ascend_quant.refit import Refit, RefitError
from ascend_quant.refit.plan import Entry
from ascend_quant.refit.scales import BlockScaledWeight, GroupScaledWeight, TensorScaledWeight
from ascend_quant.schemes import SCHEMES


def weights(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * torch.rand(shape[-2], 1, generator=generator)).bfloat16()


def block_weight(shape):
    scale = torch.zeros(*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
    return BlockScaledWeight("w", torch.zeros(shape, dtype=torch.float8_e4m3fn), scale, shape[-1])


def write(refit, shards, view_of):
    """A whole refit; `shards` are (name, tensor, rows of the view)."""
    resident = refit.residents[0]
    with refit.session():
        for name, tensor, *where in shards:
            if refit.place([(name, tensor)]):
                slot = refit.batch.new_sources([(name, tensor.numel())])
                entry = Entry(tensor.shape)
                for one in refit.write(slot, resident, view_of(*where), tensor):
                    entry.add(resident, one)
                refit.received.count(1, tensor.nbytes)
                refit.record(name, entry)
            refit.batch.flush()
    assert refit.last_receipt.digest == refit.digest()


def assert_blocks(resident, w):
    codes, scale = oracle.quantize(w, SCHEMES["fp8_block"])
    assert torch.equal(resident.data.view(torch.int8), codes.view(torch.int8)) and torch.equal(resident.scale, scale)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=6),
    st.sampled_from([1, 128, 200]),
    st.integers(0, 999),
)
def test_blocks_that_straddle_shards_come_out_whole(sizes, columns, seed):
    w = weights((sum(sizes), columns), seed)
    resident = block_weight(w.shape)
    refit, starts = Refit([resident]), [sum(sizes[:i]) for i in range(len(sizes))]
    for step in range(3):  # the second and third by plan
        w = weights(w.shape, seed + step)
        shards = [(f"s{i}", w[a : a + n].clone(), a, a + n) for i, (a, n) in enumerate(zip(starts, sizes, strict=True))]
        random.Random(seed).shuffle(shards)
        write(refit, shards, lambda a, b: resident.data[a:b])
        assert_blocks(resident, w)
        assert step == 0 or refit.last_receipt.changed > 0 or w.numel() < 64 * 3
    write(refit, [("whole", w, 0, len(w))], lambda a, b: resident.data[a:b])  # as one, and then in shards again
    assert_blocks(resident, w)
    w = weights(w.shape, seed + 7)
    write(
        refit,
        [(f"s{i}", w[a : a + n].clone(), a, a + n) for i, (a, n) in enumerate(zip(starts, sizes, strict=True))],
        lambda a, b: resident.data[a:b],
    )
    assert_blocks(resident, w)


@pytest.mark.parametrize("half", [36, 64, 128, 200])
def test_stacked_experts_have_blocks_of_their_own(half):
    w = weights((3, 2 * half, 130))
    resident = block_weight(w.shape)
    refit = Refit([resident])
    halves = [(f"{i}.{j}", w[i, j * half : (j + 1) * half].clone(), i, j) for i in range(3) for j in range(2)]
    write(refit, halves[::-1], lambda i, j: resident.data[i, j * half : (j + 1) * half])
    assert_blocks(resident, w)
    write(
        refit,
        [(f"{j}", w[:, j * half : (j + 1) * half].clone(), j) for j in range(2)],
        lambda j: resident.data[:, j * half : (j + 1) * half],
    )
    assert_blocks(resident, w)


def test_a_block_of_which_a_part_is_missing_fails_the_refit():
    w, resident = weights((200, 128)), block_weight((200, 128))
    with pytest.raises(RefitError, match=r"1 missing .*: "):
        write(Refit([resident]), [("top", w[:100].clone(), 0, 100)], lambda a, b: resident.data[a:b])


def test_what_is_not_finite_in_a_straddling_block_names_its_tensor():
    w, resident = weights((200, 128)), block_weight((200, 128))
    w[150, 3] = float("nan")
    shards = [("top", w[:100].clone(), 0, 100), ("bottom", w[100:].clone(), 100, 200)]
    with pytest.raises(RefitError, match="bottom: 1 of 12800 elements are NaN or Inf"):
        write(Refit([resident]), shards, lambda a, b: resident.data[a:b])


def test_rows_of_several_tensors_keep_their_tensors_scales():
    q, k = weights((64, 32)), weights((32, 32), 1) * 100
    data, scale = torch.zeros(96, 32, dtype=torch.float8_e4m3fn), torch.zeros(96, 1)
    resident = TensorScaledWeight("qk", data, scale, 32)
    refit = Refit([resident])
    for _ in range(2):
        write(refit, [("k", k, 64, 96), ("q", q, 0, 64)], lambda a, b: data[a:b])
        for part, rows in ((q, slice(0, 64)), (k, slice(64, 96))):
            codes, expected = oracle.quantize(part, SCHEMES["fp8_tensor"])
            assert torch.equal(data[rows].view(torch.int8), codes.view(torch.int8))
            assert (scale[rows] == expected).all()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_s_rows_or_columns_have_the_scale_of_the_whole_tensor(rank):
    w = weights((64, 32))
    codes, expected = oracle.quantize(w, SCHEMES["fp8_tensor"])
    for rows, columns in (
        (slice(32 * rank, 32 * rank + 32), slice(0, 32)),
        (slice(0, 64), slice(16 * rank, 16 * rank + 16)),
    ):
        part = w[rows, columns]
        resident = TensorScaledWeight(
            "w", torch.zeros(part.shape, dtype=torch.float8_e4m3fn), torch.zeros(len(part), 1), 32
        )
        refit = Refit([resident])
        with refit.session():
            slot = refit.batch.new_sources([("w", w.numel())])
            refit.write(slot, resident, resident.data, part, w[rows], base=w)
        assert torch.equal(resident.data.view(torch.int8), codes[rows, columns].view(torch.int8))
        assert (resident.scale == expected).all()


def test_a_rearranged_tensor_has_no_scale_to_be_found():
    w = weights((64, 32))
    resident = TensorScaledWeight("w", torch.zeros(32, 64, dtype=torch.float8_e4m3fn), torch.zeros(32, 1), 64)
    refit = Refit([resident])
    with pytest.raises(RefitError, match=r"rearranges .* \(64, 32\).* use scheme fp8"), refit.session():
        refit.write(refit.batch.new_sources([("w", 1)]), resident, resident.data, w.T, base=w)


@pytest.mark.parametrize("scheme", ["int4_g32", "int4_g128"])
@pytest.mark.parametrize("length", [128, 256])
@pytest.mark.parametrize(("kind", "half"), [(PackedRows, 24), (MarlinTiles, 32), (MarlinTiles, 64)])
def test_int4_shards_in_any_order(scheme, length, kind, half):
    scheme = SCHEMES[scheme]
    w = weights((3, 2 * half, length))
    layout = kind(w.shape, scheme.group)
    stand_in = torch.empty(w.shape, dtype=torch.int8, device="meta")
    resident = GroupScaledWeight("w", stand_in, layout.scales, length, layout=layout)
    refit = Refit([resident])
    halves = [(f"{i}.{j}", w[i, half * j : half * (j + 1)].clone(), i, j) for i in range(3) for j in range(2)]
    for _ in range(2):
        write(refit, halves[::-1], lambda i, j: stand_in[i, half * j : half * (j + 1)])
        codes, scale = oracle.quantize(w, scheme)
        assert torch.equal(layout[:].view(w.shape), codes) and torch.equal(layout.scales, scale)
    write(refit, [("all", w)], lambda: stand_in)
    assert torch.equal(layout[:].view(w.shape), codes) and refit.last_receipt.changed == 0


def test_codes_are_not_taken_for_weights():
    resident = block_weight((128, 128))
    with pytest.raises(RefitError, match=r"got torch.float8_e4m3fn; send BF16 weights"):
        write(Refit([resident]), [("w", torch.zeros(128, 128, dtype=torch.float8_e4m3fn))], lambda: resident.data)
