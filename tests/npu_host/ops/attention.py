"""Attention over a paged cache of keys and values in int8, as vllm-ascend's C8 keeps it, and what writes into it.

The cache is (blocks, kv_heads, D / 32, block, 32); decoding takes whole keys and values (B, kv_heads, S, D) as well.
"""

import torch

from npu_host import memory
from npu_host.reference import reference


def read_pages(cache: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """(tokens of all its blocks, kv_heads, D) of one sequence."""
    pages = cache[table].permute(0, 3, 1, 2, 4)
    return pages.reshape(-1, cache.shape[1], cache.shape[2] * cache.shape[4])


@reference("npu::npu_fused_infer_attention_score")
def npu_fused_infer_attention_score(a):
    if a.input_layout != "BNSD" or a.query.shape[2] != 1 or a.key.dtype != torch.int8:
        raise NotImplementedError("only decoding from int8 keys and values in BNSD is modelled")
    rows = [_decode(a, row).to(a.query.dtype) for row in range(len(a.query))]
    return torch.stack(rows).unsqueeze(2), torch.empty(0, dtype=torch.float32)


def _decode(a, row: int) -> torch.Tensor:
    """(heads, D) of one sequence."""
    length = a.actual_seq_lengths_kv[row]
    sides = (a.key, a.key_antiquant_scale), (a.value, a.value_antiquant_scale)
    keys, values = (
        _floats(a, row, *side)[:length].repeat_interleave(a.num_heads // a.num_key_value_heads, 1) for side in sides
    )
    weights = (torch.einsum("hd,thd->ht", a.query[row, :, 0].float(), keys) * a.scale).softmax(-1)
    return torch.einsum("ht,thd->hd", weights, values)


def _floats(a, row: int, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """(length, kv_heads, D): scales of channels (mode 0: kv_heads, 1, D), or of tokens (mode 1: 1, B, S)."""
    heads = a.num_key_value_heads
    paged = a.block_table is not None
    rows = read_pages(codes, a.block_table[row].long()) if paged else codes[row].transpose(0, 1)
    scale = scale.float().view(heads, -1) if a.key_antiquant_mode == 0 else scale[0, row].view(-1, 1, 1)
    return rows.float() * scale


@reference("npu::npu_scatter_pa_kv_cache", on_device=True)
def npu_scatter_pa_kv_cache(a):
    for rows, cache in ((a.key, a.key_cache), (a.value, a.value_cache)):
        rows, pages, slots = memory.alias(rows), memory.alias(cache), memory.alias(a.slot_mapping).long()
        block, offset = slots // pages.shape[3], slots % pages.shape[3]
        pages[block, :, :, offset] = rows.view(len(rows), pages.shape[1], pages.shape[2], pages.shape[4])
