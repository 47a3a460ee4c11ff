"""Attention of an exact engine: the keys of a token are summed in one order, whatever else is in the batch.

On GPUs, FlashAttention 3 splits a sequence's keys into a number of parts that depends on the batch. With one part,
decode and prefill use the same blocks of 128 keys (for head size 128, but not for 64). On CPUs, vLLM's kernel also
splits the keys, into tiles whose size depends on the L2 cache and on the number of queries. Here each query is treated
as a separate request, as in decode, so a prefill reads its keys once per query.
"""

from collections.abc import Callable
from typing import Any

import torch

SPLIT_HEADS = (64,)  # head sizes for which FlashAttention 3 uses other blocks of keys in decode than in prefill


def one_part(original: Callable) -> Callable:
    """Wrap FlashAttention's functions: keys are not split (num_splits=1), whatever the caller requests."""
    return lambda *args, **kwargs: original(*args, **{**kwargs, "num_splits": 1})


def scheduling_each_query(original: Callable) -> Callable:
    """Wrap `cpu_attn_get_scheduler_metadata`: the plan has one request per query."""

    def cpu_attn_get_scheduler_metadata(**given: Any) -> torch.Tensor:
        starts, lengths, _ = each_query(given["query_start_loc"], given["seq_lens"])
        own = {"num_reqs": len(lengths), "query_start_loc": starts, "seq_lens": lengths, "enable_kv_split": False}
        return original(**{**given, **own})

    return cpu_attn_get_scheduler_metadata


def attending_each_query(original: Callable) -> Callable:
    """Wrap `cpu_attention_with_kv_cache`: each query is a separate request, as in that plan."""

    def cpu_attention_with_kv_cache(**given: Any) -> None:
        starts, lengths, request = each_query(given["query_start_loc"], given["seq_lens"])
        own = {"query_start_loc": starts, "seq_lens": lengths, "block_table": given["block_table"][request]}
        original(**{**given, **own})

    return cpu_attention_with_kv_cache


def each_query(starts_R1: torch.Tensor, lengths_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split R requests into requests of one query each.

    Args:
        starts_R1: int32, start of each request's queries, and the end of the last.
        lengths_R: int32, number of keys of each request, which is that of its last query.

    Returns:
        Starts and lengths of the new requests, and int64 index of the original request of each.
    """
    counts_R = starts_R1.diff()
    request_T = torch.repeat_interleave(torch.arange(len(lengths_R)), counts_R.long())
    query_T = torch.arange(len(request_T), dtype=torch.int32)
    lengths_T = lengths_R[request_T] - (starts_R1[1:][request_T] - 1 - query_T)
    return torch.arange(len(request_T) + 1, dtype=torch.int32), lengths_T.to(lengths_R.dtype), request_T
