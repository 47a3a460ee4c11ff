"""Where an int8 cache of keys and values has its bytes: pages of as many bytes as vLLM's int8_per_token_head has.

A page holds `page` tokens of all heads of keys, or of values: first the codes, (heads, page, head), then the scales,
float32 (heads, page). So each row of codes begins at a multiple of 16 bytes and a head's rows of a page are adjacent,
where vLLM puts each row's scale behind its codes, and a row begins at a multiple of 4. A block is a page of keys and
one of values.
"""

from typing import NamedTuple

import torch

SCALE_BYTES = 4
HEADS_OF_BYTES = (64, 128, 256)  # numbers of a head that the kernels take
PAGE_TOKENS = 16  # a page has a multiple of these


class Layout(NamedTuple):
    """What tells where a code or a scale is."""

    page: int
    heads: int
    head: int

    @property
    def page_bytes(self) -> int:
        """Of the keys or of the values of a block."""
        return self.page * self.heads * (self.head + SCALE_BYTES)

    def problem(self) -> str | None:
        """Why the kernels do not take it."""
        if self.head not in HEADS_OF_BYTES:
            return f"heads of {self.head} numbers; the kernels take {', '.join(map(str, HEADS_OF_BYTES))}"
        if self.page % PAGE_TOKENS:
            return f"pages of {self.page} tokens; the kernels take multiples of {PAGE_TOKENS}"
        return None


def empty(blocks: int, layout: Layout, device: torch.device | str) -> torch.Tensor:
    """A cache of zeros in the shape that vLLM gives to one of int8_per_token_head."""
    shape = (blocks, 2, layout.page, layout.heads, layout.head + SCALE_BYTES)
    return torch.zeros(shape, dtype=torch.int8, device=device)


def layout_of(cache: torch.Tensor) -> Layout:
    """Of a cache in that shape.

    Raises:
        ValueError: it is not laid out block after block without gaps, or the kernels do not take its sizes.
    """
    if cache.dim() != 5 or cache.shape[1] != 2 or cache.element_size() != 1:
        raise ValueError(f"a cache of shape {tuple(cache.shape)} and {cache.dtype} is none of int8 per token and head")
    layout = Layout(cache.shape[2], cache.shape[3], cache.shape[4] - SCALE_BYTES)
    problem = layout.problem()
    if problem is None and not cache.is_contiguous():
        problem = f"strides {cache.stride()} of shape {tuple(cache.shape)}; the kernels take contiguous pages"
    if problem is not None:
        raise ValueError(problem)
    return layout


def views(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes int8 (blocks, 2, heads, page, head) and scales float32 (blocks, 2, heads, page), in place."""
    layout = layout_of(cache)
    pages = cache.view(torch.int8).view(cache.shape[0], 2, layout.page_bytes)
    codes = layout.page * layout.heads * layout.head
    of_codes, of_scales = pages[..., :codes], pages[..., codes:].view(torch.float32)
    shape = (cache.shape[0], 2, layout.heads, layout.page)
    return of_codes.unflatten(-1, (*shape[2:], layout.head)), of_scales.unflatten(-1, shape[2:])
