"""The int8 cache's writer and its decode attention, on a GPU or in Triton's interpreter, against the oracle."""

from importlib import import_module

import pytest
import torch
from kernel_modules import triton_module

from ascend_quant.kernels import cache_pages
from ascend_quant.oracle import cache as oracle

pytestmark = pytest.mark.gpu(interpreted=True)


@pytest.fixture(scope="module")
def decode():
    """The modules of the writer and of the attention, and where their tensors are."""
    with triton_module("ascend_quant.kernels.triton_decode") as (found, device):
        yield import_module("ascend_quant.kernels.triton_cache"), found, device


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(writer, layout, lengths, device, dtype=torch.bfloat16, blocks_beyond=3):
    """A cache with tokens of each sequence in blocks of no order, the table, and keys and values as the oracle's."""
    needed = [-(-length // layout.page) for length in lengths]
    order = torch.randperm(sum(needed) + blocks_beyond, generator=torch.Generator().manual_seed(7)).tolist()
    cache = cache_pages.empty(len(order), layout, device)
    cache_pages.views(cache).scales.fill_(torch.nan)  # what lies in unused places must not be seen
    table = torch.full((len(lengths), max(needed) + 2), -(2**30), dtype=torch.int32)
    keys, values = [], []
    for row, (length, blocks) in enumerate(zip(lengths, needed, strict=True)):
        mine = [order.pop() for _ in range(blocks)]
        table[row, :blocks] = torch.tensor(mine, dtype=torch.int32)
        k, v = (normal(length, layout.heads, layout.head, seed=2 * row + i).to(dtype) for i in range(2))
        place = torch.arange(length)
        slots = torch.tensor(mine, dtype=torch.int64)[place // layout.page] * layout.page + place % layout.page
        writer.write(k.to(device), v.to(device), cache, slots.to(device))
        keys.append(oracle.dequantize_cache(*oracle.quantize_cache(k)))
        values.append(oracle.dequantize_cache(*oracle.quantize_cache(v)))
    return cache, table.to(device), keys, values


@pytest.mark.parametrize("swap", [False, True])
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
def test_attention_is_the_oracles(decode, heads, group, head, page, tile, processors, lengths, swap):
    writer, module, device = decode
    layout = cache_pages.Layout(page, heads, head)
    cache, table, keys, values = filled(writer, layout, lengths, device)
    q = normal(len(lengths), heads * group, head, seed=99).half()
    tiles = module.DecodeTiles(tile, 1, 4, 2, swap)
    run = module.Decoder(len(lengths) + 3, heads * group, layout, torch.device(device), tiles, processors)
    on_device = torch.tensor(lengths, dtype=torch.int32, device=device)
    out = torch.full(q.shape, torch.nan, dtype=torch.float16, device=device)
    run(q.to(device), cache, table, on_device, run.plan(on_device), head**-0.5, out)
    expected = oracle.decode_attention(q, keys, values, head**-0.5)
    assert (out.cpu().double() - expected).abs().max() < 4e-3
    assert not out[[row for row, length in enumerate(lengths) if length == 0]].any()
