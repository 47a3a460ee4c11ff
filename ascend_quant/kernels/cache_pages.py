"""Memory layout of an int8 KV cache, with pages of the same size as vLLM's int8_per_token_head.

A block consists of a page of keys and a page of values. A page holds `page` tokens of all heads: first the int8 codes,
head by head, then the float32 scales (heads, page). Codes of keys are (heads, page, head); those of values (heads, page
/ together, head, together): the codes of up to 64 tokens in one column are adjacent, since values are summed over
tokens, and tensor cores read the summed dimension in words of four bytes. Every load is therefore 16 bytes wide, and
eight threads read 128 adjacent bytes. In vLLM's layout each row's scale follows its codes, so rows are aligned to 4
bytes only.
"""

import math
from typing import NamedTuple

import torch

SCALE_BYTES = 4
ALIGNED = 64  # bytes: alignment of a page's codes and scales within the cache
HEADS_OF_BYTES = (64, 128, 256)  # head sizes that the kernels support
FEWEST_TOGETHER, MOST_TOGETHER = 16, 64  # bytes that a thread loads at once; tokens that a program multiplies at once


class Layout(NamedTuple):
    """The sizes of an int8 KV cache, from which addresses of codes and scales are computed."""

    page: int
    heads: int
    head: int

    @property
    def page_bytes(self) -> int:
        """The size in bytes of a block's keys, which is also that of its values."""
        return self.page * self.heads * (self.head + SCALE_BYTES)

    @property
    def together(self) -> int:
        """The number of tokens whose value codes in one column are adjacent."""
        return math.gcd(self.page, MOST_TOGETHER)

    def problem(self) -> str | None:
        """Return why the kernels do not support this layout; None if they do."""
        if self.head not in HEADS_OF_BYTES:
            return f"heads of {self.head} elements; the kernels support {', '.join(map(str, HEADS_OF_BYTES))}"
        if self.page % FEWEST_TOGETHER:
            return f"pages of {self.page} tokens; the kernels need multiples of {FEWEST_TOGETHER}"
        return None


def empty(blocks: int, layout: Layout, device: torch.device | str) -> torch.Tensor:
    """Return a cache of zeros, in the shape that vLLM gives to an int8_per_token_head cache."""
    shape = (blocks, 2, layout.page, layout.heads, layout.head + SCALE_BYTES)
    return torch.zeros(shape, dtype=torch.int8, device=device)


def layout_of(cache: torch.Tensor) -> Layout:
    """Return the layout of an int8 KV cache of shape (blocks, 2, page, heads, head + 4).

    Raises:
        ValueError: the cache has gaps between blocks, is not aligned, or has sizes that the kernels do not support.
    """
    if cache.dim() != 5 or cache.shape[1] != 2 or cache.element_size() != 1:
        raise ValueError(
            f"a cache of shape {tuple(cache.shape)} and {cache.dtype} is not an int8 cache with scales per token "
            "and head"
        )
    layout = Layout(cache.shape[2], cache.shape[3], cache.shape[4] - SCALE_BYTES)
    problem = layout.problem()
    if problem is None and not cache.is_contiguous():
        problem = f"strides {cache.stride()} of shape {tuple(cache.shape)}; the kernels need contiguous pages"
    if problem is None and cache.data_ptr() % ALIGNED:
        problem = (
            f"a cache that starts {cache.data_ptr() % ALIGNED} bytes after a multiple of {ALIGNED}; the kernels "
            "need an aligned one"
        )
    if problem is not None:
        raise ValueError(problem)
    return layout
