"""The int8 cache's writer and its decode attention, on a GPU or in Triton's interpreter, against the oracle."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from kernel_modules import triton_module

from ascend_quant.kernels import cache_pages
from ascend_quant.oracle import cache as oracle

pytestmark = pytest.mark.gpu(interpreted=True)


@pytest.fixture(scope="module")
def decode():
    """The writer, the attentions, and where their tensors are."""
    with triton_module("ascend_quant.kernels.cuda.serve.triton_decoder") as (found, device):
        modules = (import_module(f"ascend_quant.kernels.cuda.serve.triton_{name}") for name in ("cache", "extend"))
        yield SimpleNamespace(write=next(modules).write, module=found, extend=next(modules).extend, device=device)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def views(cache):
    """The codes of its keys and values and their scales, in place, as cache_pages.py says where they lie."""
    layout = cache_pages.layout_of(cache)
    pages = cache.view(torch.int8).view(len(cache), 2, layout.page_bytes)
    codes = layout.page * layout.heads * layout.head
    keys, values = (pages[:, which, :codes] for which in range(2))
    return SimpleNamespace(
        keys=keys.unflatten(1, (layout.heads, layout.page, layout.head)),
        values=values.unflatten(1, (layout.heads, layout.page // layout.together, layout.head, layout.together)),
        scales=pages[..., codes:].view(torch.float32).unflatten(2, (layout.heads, layout.page)),
    )


def filled(write, layout, lengths, device, dtype=torch.bfloat16, blocks_beyond=3):
    """A cache with tokens of each sequence in blocks of no order, the table, and keys and values as the oracle's."""
    needed = [-(-length // layout.page) for length in lengths]
    order = torch.randperm(sum(needed) + blocks_beyond, generator=torch.Generator().manual_seed(7)).tolist()
    cache = cache_pages.empty(len(order), layout, device)
    views(cache).scales.fill_(torch.nan)  # what lies in unused places must not be seen
    table = torch.full((len(lengths), max(needed) + 2), -(2**30), dtype=torch.int32)
    keys, values = [], []
    for row, (length, blocks) in enumerate(zip(lengths, needed, strict=True)):
        mine = [order.pop() for _ in range(blocks)]
        table[row, :blocks] = torch.tensor(mine, dtype=torch.int32)
        k, v = (normal(length, layout.heads, layout.head, seed=2 * row + i).to(dtype) for i in range(2))
        place = torch.arange(length)
        slots = torch.tensor(mine, dtype=torch.int64)[place // layout.page] * layout.page + place % layout.page
        write(k.to(device), v.to(device), cache, slots.to(device))
        keys.append(oracle.dequantize_cache(*oracle.quantize_cache(k)))
        values.append(oracle.dequantize_cache(*oracle.quantize_cache(v)))
    return cache, table.to(device), keys, values


def attended(module, device, tiles, layout, cache, table, q, lengths, processors, dtype=torch.float16):
    """What the queries (B, H, D) get, there being room for three sequences more."""
    run = module.Decoder(len(lengths) + 3, q.shape[1], layout, torch.device(device), tiles, processors)
    on_device = torch.tensor(lengths, dtype=torch.int32, device=device)
    out = torch.full(q.shape, torch.nan, dtype=dtype, device=device)
    return run(q.to(device), cache, table, on_device, run.plan(on_device), layout.head**-0.5, out)


def found_and_expected(decode, layout, group, tiles, lengths, processors, of, dtype):
    """What queries of dtype `of` get from a filled cache, and what the oracle gives them."""
    cache, table, keys, values = filled(decode.write, layout, lengths, decode.device)
    q = normal(len(lengths), layout.heads * group, layout.head, seed=99).to(of)
    out = attended(decode.module, decode.device, tiles, layout, cache, table, q, lengths, processors, dtype)
    return out, oracle.decode_attention(q, keys, values, layout.head**-0.5)


@pytest.mark.parametrize(
    ("heads", "group", "head", "page", "tile", "processors", "lengths"),
    [
        (2, 7, 64, 16, 32, 3, [1, 70, 33, 0, 129]),
        (1, 16, 128, 32, 16, 8, [200, 5]),
        (4, 1, 64, 48, 64, 1, [64, 1, 65]),
        (2, 2, 64, 64, 32, 2, [64, 1, 65, 200]),
        (1, 4, 64, 16, 16, 40, [3, 20]),
    ],
)
def test_attention_is_the_oracles(decode, heads, group, head, page, tile, processors, lengths):
    layout, tiles = cache_pages.Layout(page, heads, head), decode.module.DecodeTiles(tile, 1, 4, 2)
    half = torch.float16
    out, expected = found_and_expected(decode, layout, group, tiles, lengths, processors, half, half)
    assert (out.cpu().double() - expected).abs().max() < 4e-3
    assert not out[[row for row, length in enumerate(lengths) if length == 0]].any()


@pytest.mark.parametrize(
    ("heads", "group", "head", "page", "tile", "processors", "lengths"),
    [
        (2, 7, 64, 16, 32, 3, [1, 70, 33, 0, 129]),
        (1, 8, 128, 32, 32, 8, [200, 5]),
        (4, 1, 64, 48, 64, 1, [64, 1, 65]),
        (2, 5, 64, 64, 32, 2, [64, 1, 65, 200]),
        (1, 7, 64, 128, 64, 3, [130, 300]),
    ],
)
def test_products_of_codes_are_the_oracles(decode, heads, group, head, page, tile, processors, lengths):
    """Queries and weights have 16 bits there: the error is far below that of products in BF16 or FP16."""
    layout, tiles = cache_pages.Layout(page, heads, head), decode.module.DecodeTiles(tile, 1, 4, 2, codes=True)
    dtypes = torch.bfloat16, torch.float32
    out, expected = found_and_expected(decode, layout, group, tiles, lengths, processors, *dtypes)
    assert (out.cpu().double() - expected).abs().max() < 1e-4
    with pytest.raises(ValueError, match="9 query heads"):
        decode.module.Decoder(1, 9, cache_pages.Layout(16, 1, 64), torch.device(decode.device), tiles)


@pytest.mark.parametrize(("page", "together"), [(32, 32), (48, 16), (128, 64)])
def test_the_writers_bytes_are_the_oracles(decode, page, together):
    layout = cache_pages.Layout(page, 3, 64)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        qkv = normal(40, 8, 64, seed=5)
        qkv[3, 2], qkv[4, 5] = 0, 1e-3
        qkv[5, 3, :3] = torch.tensor([127.0, 63.5, 2.5])  # a tie
        qkv[5, 3, 3:] = 0.5
        qkv = qkv.to(dtype)
        cache = cache_pages.empty(4, layout, decode.device)
        cache.fill_(-128)
        slots = torch.randperm(4 * page, generator=torch.Generator().manual_seed(1))[:38]
        slots[7] = -1
        there = qkv.to(decode.device)
        decode.write(there[:, 2:5], there[:, 5:], cache, slots.to(decode.device))
        found = views(cache.cpu())
        used = [number for number in range(38) if number != 7]
        at = slots[used]
        for which, x in enumerate((qkv[:, 2:5], qkv[:, 5:])):
            codes, scale = oracle.quantize_cache(x[used])
            if which:
                assert torch.equal(found.values[at // page, :, at % page // together, :, at % together], codes)
            else:
                assert torch.equal(found.keys[at // page, :, at % page], codes)
            assert torch.equal(found.scales[at // page, which, :, at % page], scale)
        untouched = torch.ones(4, page, dtype=torch.bool)
        untouched[at // page, at % page] = False
        assert untouched.sum() == 4 * page - 37
        assert (found.keys.transpose(1, 2)[untouched] == -128).all()  # neither slot -1 nor tokens without a slot


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_spoils_what_attends_to_it(decode, bad, codes):
    layout = cache_pages.Layout(16, 2, 64)
    cache = cache_pages.empty(4, layout, decode.device)
    k, v = normal(33, 2, 64, seed=1).bfloat16(), normal(33, 2, 64, seed=2).bfloat16()
    v[32, 1, 3] = bad
    slots = torch.arange(33, device=decode.device)
    decode.write(k.to(decode.device), v.to(decode.device), cache, slots)
    table = torch.tensor([[0, 1, 2], [0, 1, 2]], dtype=torch.int32, device=decode.device)
    lengths = torch.tensor([33, 32], dtype=torch.int32, device=decode.device)
    q = normal(2, 4, 64, seed=3).half().to(decode.device)
    tiles = decode.module.DecodeTiles(32 if codes else 16, 1, 4, 2, codes)
    run = decode.module.Decoder(2, 4, layout, torch.device(decode.device), tiles, 4)
    out = run(q, cache, table, lengths, run.plan(lengths), 0.1, torch.empty_like(q))
    assert (~out.isfinite()).flatten(2).all(2).tolist() == [[False, False, True, True], [False] * 4]


def test_what_the_kernels_do_not_take():
    assert cache_pages.Layout(16, 4, 128).problem() is None
    assert "96" in cache_pages.Layout(16, 4, 96).problem() and "24" in cache_pages.Layout(24, 4, 128).problem()
    cache = cache_pages.empty(2, cache_pages.Layout(16, 2, 64), "cpu")
    with pytest.raises(ValueError, match="stride"):
        cache_pages.layout_of(cache.permute(0, 1, 3, 2, 4).contiguous().permute(0, 1, 3, 2, 4))  # HND
    with pytest.raises(ValueError, match="float32"):
        cache_pages.layout_of(cache.float())
    bytes_of = torch.zeros(cache.numel() + 64, dtype=torch.int8)
    with pytest.raises(ValueError, match="16 bytes"):
        cache_pages.layout_of(bytes_of[16:][: cache.numel()].view(cache.shape))


def test_more_sequences_than_there_is_room_for(decode):
    run = decode.module.Decoder(3, 4, cache_pages.Layout(16, 2, 64), torch.device(decode.device), processors=4)
    lengths = torch.ones(4, dtype=torch.int32, device=decode.device)
    assert run.plan(lengths[:3]).first_tile.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"4 .*3"):
        run.plan(lengths)


@pytest.mark.parametrize(("query_heads", "name"), [(5, "5"), (34, "34")])
def test_query_heads_that_are_not_taken(decode, query_heads, name):
    with pytest.raises(ValueError, match=name):
        decode.module.Decoder(3, query_heads, cache_pages.Layout(16, 2, 64), torch.device(decode.device))


@pytest.mark.parametrize("with_fresh", [False, True])
def test_chunks_are_the_oracles(decode, with_fresh):
    """Each new token attends to what is before it and to itself."""
    layout, group = cache_pages.Layout(16, 2, 64), 3
    lengths, new = [100, 70, 5, 140], [30, 70, 1, 66]
    cache, table, keys, values = filled(decode.write, layout, lengths, decode.device)
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
    q = normal(sum(new), 2 * group, 64, seed=9).half()
    out = torch.full(q.shape, torch.nan, dtype=torch.float16, device=decode.device)
    counts = torch.tensor(lengths, dtype=torch.int32, device=decode.device)
    there = (q.to(decode.device), cache, table, counts, starts.to(decode.device))
    found = decode.extend(*there, max(new), 0.125, out, with_fresh).cpu()
    for row, (length, count) in enumerate(zip(lengths, new, strict=True)):
        mine, first = found[int(starts[row]) :][:count], length - count
        if not with_fresh and not first:
            assert mine.isnan().all()
            continue
        seen = range(first + 1, length + 1)
        of_q, k, v = q[int(starts[row]) :][:count], keys[row], values[row]
        expected = oracle.decode_attention(of_q, [k[:end] for end in seen], [v[:end] for end in seen], 0.125)
        assert (mine.double() - expected).abs().max() < 4e-3
