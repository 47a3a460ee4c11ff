"""Attention over a paged cache of keys and values in int8, as vllm-ascend's C8 keeps it, and what writes into it.

The cache is (blocks, kv_heads, D / 32, block, 32); both operators take this one layout here.
"""

import torch

from npu_host import memory
from npu_host.reference import reference


def read_pages(cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """(length, kv_heads, D) of one sequence."""
    pages = cache[table].permute(0, 3, 1, 2, 4)
    return pages.reshape(-1, cache.shape[1], cache.shape[2] * cache.shape[4])[:length]


@reference("npu::npu_fused_infer_attention_score")
def npu_fused_infer_attention_score(a):
    if a.input_layout != "BNSD" or a.key.dim() != 5 or a.block_table is None or a.key_antiquant_scale is None:
        raise NotImplementedError("only decoding over pages of int8 with scales of channels is modelled")
    batch, heads, _, size = a.query.shape
    output = torch.empty_like(a.query)
    for row in range(batch):
        keys, values = (
            read_pages(cache, a.block_table[row].long(), a.actual_seq_lengths_kv[row]).float()
            * scale.float().view(a.num_key_value_heads, size)
            for cache, scale in ((a.key, a.key_antiquant_scale), (a.value, a.value_antiquant_scale))
        )
        group = heads // a.num_key_value_heads
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        weights = (torch.einsum("hd,thd->ht", a.query[row, :, 0].float(), keys) * a.scale).softmax(-1)
        output[row, :, 0] = torch.einsum("ht,thd->hd", weights, values).to(output.dtype)
    return output, torch.empty(0, dtype=torch.float32)


@reference("npu::npu_scatter_pa_kv_cache", on_device=True)
def npu_scatter_pa_kv_cache(a):
    for rows, cache in ((a.key, a.key_cache), (a.value, a.value_cache)):
        rows, pages, slots = memory.alias(rows), memory.alias(cache), memory.alias(a.slot_mapping).long()
        block, offset = slots // pages.shape[3], slots % pages.shape[3]
        pages[block, :, :, offset] = rows.view(len(rows), pages.shape[1], pages.shape[2], pages.shape[4])
