"""vLLM's own attention and routing, registered for exact trainers.

vllm is imported inside the functions, as in cuda_products.py.
"""

from functools import cache
from types import SimpleNamespace

import torch

from ascend_quant.exact.packing import Sequences
from ascend_quant.integrations.vllm.exact.attention import SPLIT_HEADS, each_query
from ascend_quant.kernels import engine_products

BLOCK = 128  # tokens per page, vLLM's default on CPUs


def register() -> None:
    """Register the available functions with `kernels`; idempotent."""
    engine_products.register({"route": route, "attention": attention}, {}, {})


def attention(
    q_THD: torch.Tensor, k_THD: torch.Tensor, v_THD: torch.Tensor, sequences: Sequences, scale: float
) -> torch.Tensor:
    """Compute causal attention within each sequence, (T, H, D), with the kernel of an exact engine on this device.

    Raises:
        NotImplementedError: there are no exact engines on the device.
    """
    if (device := q_THD.device.type) not in ATTENTION:
        raise NotImplementedError(f"exact training supports attention on {' or '.join(ATTENTION)}, not on {device}")
    return ATTENTION[device](q_THD, k_THD, v_THD, sequences, scale)


def route(logits_ME: torch.Tensor, top_k: int, renormalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Route by softmax as vLLM does on this machine; return weights, float32, and expert ids, int32, (M, T)."""
    from ascend_quant.integrations.vllm import compat

    if compat.routes_by_itself():
        return _router(top_k, logits_ME.shape[1], renormalize)(logits_ME, logits_ME)
    return compat.select_experts(_softmax_layer(top_k, renormalize), logits_ME, logits_ME)


@cache
def _router(top_k: int, experts: int, renormalize: bool):
    from vllm.model_executor.layers.fused_moe.router.router_factory import create_fused_moe_router

    return create_fused_moe_router(top_k=top_k, global_num_experts=experts, renormalize=renormalize).select_experts


def _softmax_layer(top_k: int, renormalize: bool) -> SimpleNamespace:
    absent = ("topk_group", "num_expert_group", "custom_routing_function", "e_score_correction_bias")
    named = {"use_grouped_topk": False, "scoring_func": "softmax"}
    return SimpleNamespace(top_k=top_k, renormalize=renormalize, **named, **dict.fromkeys(absent))


def cpu_attention(
    q_THD: torch.Tensor, k_THD: torch.Tensor, v_THD: torch.Tensor, sequences: Sequences, scale: float
) -> torch.Tensor:
    """Compute causal attention within each sequence, (T, H, D), in pages and query by query, as in an exact engine.

    Args:
        k_THD, v_THD: keys and values, with as many heads or fewer.
    """
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    (_, heads, size), kv_heads, dtype = q_THD.shape, k_THD.shape[1], q_THD.dtype
    isa = _get_attn_isa(dtype, BLOCK, size)
    starts, lengths, row = each_query(sequences.offsets, torch.tensor(sequences.lengths, dtype=torch.int32))
    table_NB, slots_T = _pages(sequences.lengths)
    cache = torch.zeros(int(table_NB.max()) + 1, kv_heads, BLOCK * 2, size, dtype=dtype)
    pages = cache.chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(k_THD.contiguous(), v_THD.contiguous(), *pages, slots_T, isa)
    how = {"causal": True, "query_start_loc": starts, "seq_lens": lengths}
    plan = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=len(lengths),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=size,
        dtype=dtype,
        sliding_window_size=-1,
        isa=isa,
        enable_kv_split=False,
        **how,
    )
    out_THD = torch.empty(q_THD.shape, dtype=dtype)
    ops.cpu_attention_with_kv_cache(
        query=q_THD.contiguous(),
        key_cache=pages[0],
        value_cache=pages[1],
        output=out_THD,
        scale=scale,
        alibi_slopes=None,
        sliding_window=-1,
        block_table=table_NB[row],
        softcap=0,
        scheduler_metadata=plan,
        s_aux=None,
        **how,
    )
    return out_THD


def _pages(lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pages of each sequence, int32 (N, most pages), and the position of each token, int64 (T,)."""
    pages = [-(-length // BLOCK) for length in lengths]
    table_NB, slots, first = torch.zeros(len(pages), max(pages), dtype=torch.int32), [], 0
    for row, (length, count) in enumerate(zip(lengths, pages, strict=True)):
        table_NB[row, :count] = torch.arange(first, first + count)
        slots.append(first * BLOCK + torch.arange(length))
        first += count
    return table_NB, torch.cat(slots)


def cuda_attention(
    q_THD: torch.Tensor, k_THD: torch.Tensor, v_THD: torch.Tensor, sequences: Sequences, scale: float
) -> torch.Tensor:
    """Compute causal attention with FlashAttention 3, which uses the same blocks of keys with and without pages.

    Raises:
        RuntimeError: the GPU has no FlashAttention 3, or decode uses other blocks for this head size
            (exact/install.py).
    """
    from vllm.vllm_flash_attn import flash_attn_varlen_func, is_fa_version_supported

    if not is_fa_version_supported(3) or q_THD.shape[-1] in SPLIT_HEADS:
        raise RuntimeError(
            "exact training needs FlashAttention 3 (Hopper GPUs) and a head size of 128, not head size "
            f"{q_THD.shape[-1]} on {torch.cuda.get_device_name(q_THD.device)}"
        )
    offsets, longest = sequences.offsets, max(sequences.lengths)
    return flash_attn_varlen_func(
        q_THD, k_THD, v_THD, longest, offsets, longest, cu_seqlens_k=offsets, softmax_scale=scale, causal=True,
        fa_version=3, num_splits=1,
    )  # fmt: skip


ATTENTION = {"cpu": cpu_attention, "cuda": cuda_attention}
