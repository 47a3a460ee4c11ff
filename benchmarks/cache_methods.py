"""Decode attention over a paged cache, ours and vLLM's: each method a pool of bytes, and calls that read it."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from ascend_quant.kernels import cache_pages

HEAD = 128
SCALE = HEAD**-0.5
FA_PAGE = STOCK_PAGE = 16  # vLLM's usual
MOST_SPLITS = 32  # flash_attn_max_num_splits_for_cuda_graph


class Shape(NamedTuple):
    """A decode step's attention of one layer.

    Attributes:
        context: tokens of a sequence, in the mean.
        ragged: whether lengths differ as answers' do.
    """

    heads: int
    query_heads: int
    context: int
    batch: int
    ragged: bool

    @property
    def tokens(self) -> int:
        return self.context * self.batch

    def lengths(self) -> torch.Tensor:
        """int32 (batch); ragged ones from a lognormal distribution with the stated mean, three times it at most."""
        if not self.ragged:
            return torch.full((self.batch,), self.context, dtype=torch.int32)
        drawn = torch.randn(self.batch, generator=torch.Generator().manual_seed(self.batch + self.context))
        weights = (0.7 * drawn).exp().clamp(max=4.0)
        lengths = (weights / weights.sum() * self.tokens).clamp(1, 3 * self.context).int()
        lengths[lengths.argmin()] += self.tokens - int(lengths.sum())  # the sum is that of equal lengths
        return lengths.clamp_(min=1)


class Inputs(NamedTuple):
    """What all methods take: queries (B, H, D), lengths, and where the output goes."""

    q: torch.Tensor
    lengths: torch.Tensor
    longest: int
    out: torch.Tensor


def inputs(shape: Shape, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Inputs:
    """Random queries."""
    lengths = shape.lengths()
    q = torch.randn(shape.batch, shape.query_heads, HEAD, device=device, dtype=dtype)
    return Inputs(q, lengths.to(device), int(lengths.max()), torch.empty_like(q))


def tables(shape: Shape, page: int, pool_blocks: int, copies: int, device: torch.device) -> list[torch.Tensor]:
    """Block tables of as many layers, each with its own blocks in no order, as far as the pool has them."""
    needed = (shape.lengths() + page - 1) // page
    total, most = int(needed.sum()), int(needed.max())
    used = torch.arange(most) < needed[:, None]
    found = []
    for copy in range(copies):
        first = copy * total if (copy + 1) * total <= pool_blocks else 0
        table = torch.zeros(shape.batch, most, dtype=torch.int32)
        table[used] = first + torch.randperm(total, generator=torch.Generator().manual_seed(copy)).int()
        found.append(table.to(device))
    return found


class Ours:
    """The int8 cache with a scale a token and head, in our pages."""

    name = "int8 (ours)"
    token_bytes = 2 * (HEAD + cache_pages.SCALE_BYTES)  # of a head

    def __init__(self, room: int, page: int, device: torch.device):
        self.page, self.device = page, device
        self.pool = torch.empty(room, dtype=torch.int8, device=device).random_(-127, 128)

    def cache(self, heads: int) -> torch.Tensor:
        """The pool in pages for so many heads, its scales set."""
        layout = cache_pages.Layout(self.page, heads, HEAD)
        blocks = self.pool.numel() // (2 * layout.page_bytes)
        shape = (blocks, 2, self.page, heads, HEAD + cache_pages.SCALE_BYTES)
        cache = self.pool[: blocks * 2 * layout.page_bytes].view(shape)
        cache_pages.views(cache).scales.fill_(0.01)
        return cache

    def calls(self, shape: Shape, given: Inputs, cache: torch.Tensor, copies: int, tiles, processors: int) -> list:
        """One launch for each layer; the plan is made once, as an engine makes it."""
        from ascend_quant.kernels.triton_decode import Decoder

        layout = cache_pages.layout_of(cache)
        run = Decoder(shape.batch, shape.query_heads, layout, self.device, tiles, processors)
        plan = run.plan(given.lengths)

        def call(table: torch.Tensor) -> Callable[[], object]:
            return lambda: run(given.q, cache, table, given.lengths, plan, SCALE, given.out)

        return [call(table) for table in tables(shape, self.page, cache.shape[0], copies, self.device)]


class FlashAttention:
    """vLLM's FlashAttention 3 over a BF16 or FP8 cache, scheduled and split as under CUDA graphs."""

    def __init__(self, room: int, fp8: bool, device: torch.device):
        from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

        self.attend, self.schedule = flash_attn_varlen_func, get_scheduler_metadata
        self.fp8, self.device = fp8, device
        self.name = "FA3 fp8" if fp8 else "FA3 bf16"
        self.token_bytes = 2 * HEAD * (1 if fp8 else 2)
        elements = room // (1 if fp8 else 2)
        self.pool = torch.empty(elements, dtype=torch.float8_e4m3fn if fp8 else torch.bfloat16, device=device)
        for part in self.pool.split(1 << 28):
            part.copy_(torch.randn(part.shape, device=device))

    def cache(self, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, (blocks, page, heads, D)."""
        per_block = 2 * FA_PAGE * heads * HEAD
        blocks = self.pool.numel() // per_block
        keys, values = self.pool[: blocks * per_block].view(blocks, 2, FA_PAGE, heads, HEAD).unbind(1)
        return keys, values

    def calls(self, shape: Shape, given: Inputs, cache, copies: int) -> list:
        """One call for each layer."""
        keys, values = cache
        starts = torch.arange(shape.batch + 1, dtype=torch.int32, device=self.device)
        dtype = torch.float8_e4m3fn if self.fp8 else torch.bfloat16
        q = given.q.to(dtype)
        ones = torch.ones(shape.batch, shape.heads, device=self.device) if self.fp8 else None
        schedule = self.schedule(
            batch_size=shape.batch, max_seqlen_q=1, max_seqlen_k=given.longest, num_heads_q=shape.query_heads,
            num_heads_kv=shape.heads, headdim=HEAD, cache_seqlens=given.lengths, qkv_dtype=dtype, cu_seqlens_q=starts,
            page_size=FA_PAGE, causal=True, num_splits=MOST_SPLITS,
        )  # fmt: skip

        def call(table: torch.Tensor) -> Callable[[], object]:
            return lambda: self.attend(
                q=q, k=keys, v=values, out=given.out, cu_seqlens_q=starts, max_seqlen_q=1, seqused_k=given.lengths,
                max_seqlen_k=given.longest, softmax_scale=SCALE, causal=True, block_table=table, fa_version=3,
                scheduler_metadata=schedule, num_splits=MOST_SPLITS, q_descale=ones, k_descale=ones, v_descale=ones,
            )  # fmt: skip

        return [call(table) for table in tables(shape, FA_PAGE, keys.shape[0], copies, self.device)]


class Stock:
    """vLLM 0.23's own int8_per_token_head: its Triton kernel, 2D or 3D as it decides."""

    name = "int8 (vLLM)"
    token_bytes = Ours.token_bytes
    segments = 16

    def __init__(self, room: int, device: torch.device):
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
        from vllm.v1.kv_cache_interface import KVQuantMode

        self.attend, self.mode, self.device = unified_attention, KVQuantMode.INT8_PER_TOKEN_HEAD, device
        self.pool = torch.empty(room, dtype=torch.int8, device=device).random_(-127, 128)

    def cache(self, heads: int) -> tuple[torch.Tensor, ...]:
        """Keys, values, and their scales behind each row."""
        row = HEAD + cache_pages.SCALE_BYTES
        per_block = 2 * STOCK_PAGE * heads * row
        blocks = self.pool.numel() // per_block
        whole = self.pool[: blocks * per_block].view(blocks, 2, STOCK_PAGE, heads, row)
        scales = whole.view(torch.float32)[..., HEAD // 4]
        scales.fill_(0.01)
        keys, values = whole[..., :HEAD].unbind(1)
        return keys, values, *scales.unbind(1)

    def calls(self, shape: Shape, given: Inputs, cache, copies: int) -> list:
        """One call for each layer."""
        keys, values, k_scales, v_scales = cache
        starts = torch.arange(shape.batch + 1, dtype=torch.int32, device=self.device)
        most = 128 // shape.heads
        room = {"dtype": torch.float32, "device": self.device}
        sums = torch.empty(most, shape.query_heads, self.segments, HEAD, **room)
        tops, weights = (torch.empty(most, shape.query_heads, self.segments, **room) for _ in range(2))

        def call(table: torch.Tensor) -> Callable[[], object]:
            return lambda: self.attend(
                q=given.q, k=keys, v=values, out=given.out, cu_seqlens_q=starts, max_seqlen_q=1,
                seqused_k=given.lengths, max_seqlen_k=given.longest, softmax_scale=SCALE, causal=True,
                window_size=(-1, -1), block_table=table, softcap=0, q_descale=None, k_descale=None, v_descale=None,
                seq_threshold_3D=most, num_par_softmax_segments=self.segments, softmax_segm_output=sums,
                softmax_segm_max=tops, softmax_segm_expsum=weights, kv_quant_mode=self.mode, k_scale_cache=k_scales,
                v_scale_cache=v_scales,
            )  # fmt: skip

        return [call(table) for table in tables(shape, STOCK_PAGE, keys.shape[0], copies, self.device)]
