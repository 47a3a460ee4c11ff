"""Triton kernel that quantizes new keys and values to int8, per token and head, and writes them into a paged cache.

Codes and scales are those of `oracle.quantize_cache`, rounded to nearest even, in the layout of `cache_pages`. vLLM
0.23's kernel truncates, which doubles the error and biases all values towards 0.
"""

import torch
import triton
import triton.language as tl

from ascend_quant.kernels import cache_pages
from ascend_quant.kernels.cuda import triton_elements as elements
from ascend_quant.kernels.cuda.serve import triton_tokens

WARPS = 1
TILE = 2048  # approximate number of elements per program


@triton.jit
def write_tokens(
    key,
    value,
    cache,
    slots,
    key_stride,  # between tokens
    value_stride,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    PAGE: tl.constexpr,
    TOGETHER: tl.constexpr,  # see cache_pages.Layout
    ROWS: tl.constexpr,  # heads per program
):
    """Quantize keys and values into an int8 KV cache; a program takes some heads of one token's keys or values."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    is_value = tl.program_id(2)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        head = part * ROWS + tl.arange(0, ROWS)
        column = tl.arange(0, HEAD)
        mask = (head < HEADS)[:, None]
        place = head[:, None] * HEAD + column[None, :]
        if is_value == 0:
            x = tl.load(key + token * key_stride + place, mask=mask, other=0.0)
        else:
            x = tl.load(value + token * value_stride + place, mask=mask, other=0.0)
        scale, factor = triton_tokens.scale_and_factor(triton_tokens.largest(x), x.dtype)
        if x.dtype == tl.bfloat16:
            code = triton_tokens.codes_of(x, factor)
        else:
            code = elements.outer_code(elements.as_float(x), scale[:, None]).to(tl.int8)
        row = head * PAGE + slot % PAGE
        at = cache + (slot // PAGE * 2 + is_value) * (PAGE * HEADS * (HEAD + 4))
        if is_value == 0:
            tl.store(at + row[:, None] * HEAD + column[None, :], code, mask=mask)
        else:
            first = row // TOGETHER * (HEAD * TOGETHER) + row % TOGETHER
            tl.store(at + first[:, None] + (column * TOGETHER)[None, :], code, mask=mask)
        scales = (at + PAGE * HEADS * HEAD).to(tl.pointer_type(tl.float32))
        tl.store(scales + row, scale, mask=head < HEADS)


def write(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Write tokens into their cache slots.

    Args:
        key, value: (tokens, heads, head) in BF16, FP16 or float32; a token's heads are adjacent.
        cache: int8, in the shape of `cache_pages.empty`.
        slots: block * page + offset in the page, one per token. Tokens with a negative slot, and tokens beyond the last
            slot, are not written.

    Raises:
        ValueError: see `cache_pages.layout_of`; or keys and values do not have the cache's sizes.
    """
    layout = cache_pages.layout_of(cache)
    for x in (key, value):
        if tuple(x.shape[1:]) != (layout.heads, layout.head) or x.stride()[1:] != (layout.head, 1):
            raise ValueError(f"{tuple(x.shape)} with strides {x.stride()} does not match a cache of {layout}")
    tokens = slots.shape[0]
    if tokens:
        rows = min(triton.next_power_of_2(layout.heads), TILE // layout.head)
        grid = (tokens, triton.cdiv(layout.heads, rows), 2)
        with torch.cuda.device_of(cache):
            write_tokens[grid](
                key, value, cache, slots, key.stride(0), value.stride(0), layout.heads, layout.head, layout.page,
                layout.together, rows, num_warps=WARPS,
            )  # fmt: skip
