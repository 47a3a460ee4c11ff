"""The router's product for few tokens in Triton: small tiles, so that all multiprocessors share the weight loads."""

import torch
import triton
import triton.language as tl

from ascend_quant.kernels.cuda.triton_early import call_next_and_wait, launch, starts_early

TYPES = (torch.bfloat16, torch.float16)
MOST_TOKENS = 512  # beyond this, tiles of any size fill the GPU
BLOCK, BLOCK_K = 16, 256
WARPS, STAGES = 4, 5


@triton.jit(do_not_specialize=["M"])
def router_tiles(
    x, w, out, M, N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr
):
    """Compute out (M, N) = x (M, K) @ w (N, K).T, summed in float32, rounded once; BLOCK x BLOCK per program."""
    call_next_and_wait(PDL)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x_at, w_at = x + row.to(tl.int64)[:, None] * K, w + column[None, :] * K
    sums = tl.zeros((BLOCK, BLOCK), tl.float32)
    for first in tl.range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        x_part = tl.load(x_at + k[None, :], mask=(row < M)[:, None] & (k < K)[None, :], other=0.0)
        w_part = tl.load(w_at + k[:, None], mask=(column < N)[None, :] & (k < K)[:, None], other=0.0)
        sums = tl.dot(x_part, w_part, sums)
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.store(out + row.to(tl.int64)[:, None] * N + column[None, :], sums.to(out.dtype.element_ty), mask=inside)


def takes(x: torch.Tensor, weight_NK: torch.Tensor, any_number: bool = False) -> bool:
    """Return whether the kernel supports these; `any_number` removes the limit on tokens."""
    fits = x.dim() == 2 and len(x) and x.is_contiguous() and weight_NK.is_contiguous()
    fits = fits and (any_number or len(x) <= MOST_TOKENS)
    return fits and x.dtype == weight_NK.dtype and x.dtype in TYPES


def product(x_MK: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
    """Compute x @ weight.T in their dtype; `takes` must be true."""
    (rows, length), columns = x_MK.shape, weight_NK.shape[0]
    out_MN = torch.empty((rows, columns), dtype=x_MK.dtype, device=x_MK.device)
    early = starts_early(x_MK.device)
    with torch.cuda.device_of(x_MK):
        router_tiles[(triton.cdiv(rows, BLOCK), triton.cdiv(columns, BLOCK))](
            x_MK, weight_NK, out_MN, rows, columns, length, BLOCK, BLOCK_K, early,
            num_warps=WARPS, num_stages=STAGES, **launch(early),
        )  # fmt: skip
    return out_MN
