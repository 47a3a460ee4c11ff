"""Memory layout of an int8 KV cache, with pages of the same size as vLLM's int8_per_token_head.

A block is a page of keys and one of values. A page holds `page` tokens of all heads: first the codes, a head's behind
another's, then the scales, float32 (heads, page). Codes of keys are (heads, page, head); those of values (heads,
page / together, head, together): the codes of up to 64 tokens in one column are adjacent, since values are summed over
tokens, and tensor cores take what is summed over in words of four bytes. So all is read 16 bytes at once, by eight
threads from 128 adjacent bytes, where vLLM puts each row's scale behind its codes, and a row begins at a multiple of 4.
"""

import math
from typing import NamedTuple

import torch

SCALE_BYTES = 4
ALIGNED = 64  # bytes: where a page's codes and scales begin, if the cache does
HEADS_OF_BYTES = (64, 128, 256)  # numbers of a head that the kernels take
FEWEST_TOGETHER, MOST_TOGETHER = 16, 64  # bytes of a thread's load; tokens that a program multiplies at once


class Layout(NamedTuple):
    """The sizes of an int8 KV cache that tell the address of a code or a scale."""

    page: int
    heads: int
    head: int

    @property
    def page_bytes(self) -> int:
        """The number of bytes of a block's keys, or of its values."""
        return self.page * self.heads * (self.head + SCALE_BYTES)

    @property
    def together(self) -> int:
        """Tokens whose codes of a column of values are adjacent."""
        return math.gcd(self.page, MOST_TOGETHER)

    def problem(self) -> str | None:
        """Return why the kernels do not take this layout; None if they do."""
        if self.head not in HEADS_OF_BYTES:
            return f"heads of {self.head} elements; the kernels support {', '.join(map(str, HEADS_OF_BYTES))}"
        if self.page % FEWEST_TOGETHER:
            return f"pages of {self.page} tokens; the kernels need multiples of {FEWEST_TOGETHER}"
        return None


def empty(blocks: int, layout: Layout, device: torch.device | str) -> torch.Tensor:
    """A cache of zeros in the shape that vLLM gives to one of int8_per_token_head."""
    shape = (blocks, 2, layout.page, layout.heads, layout.head + SCALE_BYTES)
    return torch.zeros(shape, dtype=torch.int8, device=device)


def layout_of(cache: torch.Tensor) -> Layout:
    """Return the layout of an int8 KV cache of shape (blocks, 2, page, heads, head + 4).

    Raises:
        ValueError: it has gaps between blocks or is not aligned, or the kernels do not take its sizes.
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
