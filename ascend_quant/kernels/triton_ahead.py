"""Weights asked for before they are needed: a kernel that starts while the one before it still runs has little to do
but to wait, and the memory stands idle.

They come into the L2 cache, where all writes show: a refit cannot be missed.
"""

import triton
import triton.language as tl

LINE = tl.constexpr(128)  # bytes that come together


@triton.jit
def ask_for(w, rows, first, last, K, BLOCK_K: tl.constexpr):
    """Steps `first` to `last`, of BLOCK_K columns, of some rows of int8 codes (.., K), line by line."""
    lines = tl.arange(0, (BLOCK_K + LINE - 1) // LINE) * LINE
    row = w + rows.to(tl.int64)[:, None] * K
    for step in range(first, last):
        at = row + tl.minimum(step * BLOCK_K + lines, K - 1)[None, :]
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at.to(tl.int64)], tl.int32, is_pure=False, pack=1
        )
