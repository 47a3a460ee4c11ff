"""The W8A8 INT8 GEMM in Triton: int8 codes, int32 sums, one float32 dequantization, for any M, N and K.

With few tokens the GPU is bound by loading weights, so programs may share a tile's K (`split_k`): each stores its int32
sums in a workspace, and the last one to finish adds them and dequantizes. Integer sums do not depend on the order, so
the result is deterministic. Hopper's wgmma takes 64 rows, so up to 32 tokens are multiplied as columns, with the
weights as rows.

The output is that of `oracle.matmul` bit for bit, given its codes: x_scale * (scale * sum), with a bias in one fused
multiply-add (`schemes.arithmetic.dequantized_sums` says why), rounded to the output's dtype.
"""

import torch
import triton
import triton.language as tl

from ascend_quant.kernels.cuda.serve.shared_tiles import workspace
from ascend_quant.kernels.cuda.triton_early import ask_for, call_next, launch, starts_early, wait
from ascend_quant.kernels.cuda.triton_elements import INTERPRETED, cast, multiply_add
from ascend_quant.kernels.tuned import HopperTiles, Tiles

LONGEST = 2**31 // 128**2 - 1  # largest K for which an int32 sum cannot overflow
GROUP_M = tl.constexpr(8)  # tiles of M that are processed before the next tile of N
FEW_TOKENS = 64  # below this block_m, tokens are the columns


def int8_product(
    x_codes_MK: torch.Tensor,
    codes_NK: torch.Tensor,
    x_scale_M1: torch.Tensor,
    scale_N1: torch.Tensor,
    bias_N: torch.Tensor | None,
    dtype: torch.dtype,
    tiles: Tiles | HopperTiles,
) -> torch.Tensor:
    """Compute the product (M, N) in `dtype`; codes are int8 and contiguous, scales float32, the bias any float dtype.

    Raises:
        ValueError: K is so large that an int32 sum could overflow.
    """
    (rows, length), columns = x_codes_MK.shape, codes_NK.shape[0]
    if length > LONGEST:
        raise ValueError(f"rows of {length} int8 codes: sums of more than {LONGEST} products may overflow int32")
    out_MN = x_codes_MK.new_empty(rows, columns, dtype=dtype)
    if out_MN.numel():
        with torch.cuda.device_of(x_codes_MK):
            start = _launch_hopper if isinstance(tiles, HopperTiles) else _launch
            start(x_codes_MK, codes_NK, x_scale_M1, scale_N1, bias_N, out_MN, tiles)
    return out_MN


def options(tiles: Tiles) -> dict[str, int | bool]:
    """Return options for Triton's compiler and launcher; FMA is disabled, so that each product is rounded."""
    return {"num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": False, **launch(tiles.pdl)}


def constants(tiles: Tiles, length: int, with_bias: bool, split: bool) -> dict[str, int | bool]:
    """Return the compile-time constants of the kernel for rows of `length` codes."""
    return {
        "BLOCK_M": tiles.block_m,
        "BLOCK_N": tiles.block_n,
        "BLOCK_K": tiles.block_k,
        "TOKENS_ARE_COLUMNS": tiles.block_m < FEW_TOKENS,
        "SPLIT": split,
        "EVEN_K": length % tiles.block_k == 0,
        "BIAS": with_bias,
        "TMA": tiles.tma,
        "PDL": tiles.pdl,
        "AHEAD": tiles.pdl and tiles.ahead > 0,
        "LATE": tiles.pdl and tiles.late,
    }


def _launch_hopper(*product) -> None:
    from ascend_quant.kernels.cuda.serve import gluon_linear  # fails under the interpreter and below sm90

    gluon_linear.launch(*product)


def _launch(x_codes_MK, codes_NK, x_scale_M1, scale_N1, bias_N, out_MN, tiles: Tiles) -> None:
    (rows, length), columns = x_codes_MK.shape, codes_NK.shape[0]
    tiles = tiles._replace(tma=tiles.tma and length % 16 == 0, pdl=tiles.pdl and starts_early(out_MN.device))
    count = triton.cdiv(rows, tiles.block_m) * triton.cdiv(columns, tiles.block_n)
    split, partial, arrived = workspace(tiles, count, length, out_MN.device)
    x, w = x_codes_MK, codes_NK
    if tiles.tma:
        from triton.tools.tensor_descriptor import TensorDescriptor  # older Triton versions lack it

        x = TensorDescriptor.from_tensor(x, [tiles.block_m, tiles.block_k])
        w = TensorDescriptor.from_tensor(w, [tiles.block_n, tiles.block_k])
    tensors = (x, w, codes_NK, x_scale_M1, scale_N1, bias_N, out_MN, partial, arrived)
    given = constants(tiles, length, bias_N is not None, split > 1)
    sizes = (rows, columns, length, split, tiles.ahead)
    int8_product_tiles[(count * split,)](*tensors, *sizes, **given, **options(tiles))


@triton.jit(do_not_specialize=["M", "split", "ahead"])
def int8_product_tiles(
    x,  # codes (M, K), or their tensor descriptor
    w,  # codes (N, K), or their tensor descriptor
    weights,  # codes (N, K)
    x_scale,
    scale,
    bias,
    out,
    partial,  # int32 (tiles, split, BLOCK_M, BLOCK_N)
    arrived,
    M,
    N,
    K,
    split,
    ahead,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TOKENS_ARE_COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr,
    EVEN_K: tl.constexpr,
    BIAS: tl.constexpr,
    TMA: tl.constexpr,
    PDL: tl.constexpr,
    AHEAD: tl.constexpr,
    LATE: tl.constexpr,
):
    program = tl.program_id(0)
    tile, part = program, 0
    if SPLIT:
        tile, part = program // split, program % split
    m, n = _place(tile, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N))
    steps = tl.cdiv(K, BLOCK_K)
    first, last = 0, steps
    if SPLIT:
        first, last = steps * part // split, steps * (part + 1) // split
    if AHEAD:
        rows = tl.minimum(n * BLOCK_N + tl.arange(0, BLOCK_N), N - 1)
        ask_for(weights, rows, first, tl.minimum(last, first + ahead), K, BLOCK_K)
    wait(PDL, LATE)
    if TMA:
        sums = _sums_by_descriptor(
            x, w, m * BLOCK_M, n * BLOCK_N, first, last, BLOCK_M, BLOCK_N, BLOCK_K, TOKENS_ARE_COLUMNS
        )
    else:
        x_rows = (m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
        w_rows = (n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
        sums = _sums_by_pointer(
            x, w, x_rows, w_rows, K, first, last, BLOCK_M, BLOCK_N, BLOCK_K, TOKENS_ARE_COLUMNS, EVEN_K
        )
    call_next(LATE)
    if TOKENS_ARE_COLUMNS:
        sums = tl.trans(sums)

    if SPLIT:
        inside = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        of_tile = partial + tile.to(tl.int64) * split * (BLOCK_M * BLOCK_N) + inside
        tl.store(of_tile + part * (BLOCK_M * BLOCK_N), sums)
        tl.debug_barrier()  # every thread has written its sums before one of them signals
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel") == split - 1:
            sums = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
            for other in range(split):
                sums += tl.load(of_tile + other * (BLOCK_M * BLOCK_N), cache_modifier=".cg")
            tl.store(arrived + tile, 0)
            _finish(sums, x_scale, scale, bias, out, m, n, M, N, BLOCK_M, BLOCK_N, BIAS)
    else:
        _finish(sums, x_scale, scale, bias, out, m, n, M, N, BLOCK_M, BLOCK_N, BIAS)


@triton.jit
def _place(tile, tiles_m, tiles_n):
    """Return a program's tile of M and of N: GROUP_M tiles of M, then the next of N, to reuse weights in L2."""
    in_group = GROUP_M * tiles_n
    first_m = tile // in_group * GROUP_M
    high = tl.minimum(tiles_m - first_m, GROUP_M)
    return first_m + tile % in_group % high, tile % in_group // high


@triton.jit
def _sums_by_pointer(
    x,
    w,
    x_rows,
    w_rows,
    K,
    first,
    last,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TOKENS_ARE_COLUMNS: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    k = tl.arange(0, BLOCK_K)
    x_at = x + x_rows.to(tl.int64)[:, None] * K + (first * BLOCK_K + k)[None, :]
    w_at = w + w_rows.to(tl.int64)[:, None] * K + (first * BLOCK_K + k)[None, :]
    sums = _zeros(BLOCK_M, BLOCK_N, TOKENS_ARE_COLUMNS)
    for step in range(first, last):
        if EVEN_K:
            x_part = tl.load(x_at, eviction_policy="evict_last")
            w_part = tl.load(w_at, eviction_policy="evict_first")
        else:
            inside = (k < K - step * BLOCK_K)[None, :]
            x_part = tl.load(x_at, mask=inside, other=0, eviction_policy="evict_last")
            w_part = tl.load(w_at, mask=inside, other=0, eviction_policy="evict_first")
        sums = _added(x_part, w_part, sums, TOKENS_ARE_COLUMNS)
        x_at += BLOCK_K
        w_at += BLOCK_K
    return sums


@triton.jit
def _sums_by_descriptor(
    x,
    w,
    x_row,
    w_row,
    first,
    last,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TOKENS_ARE_COLUMNS: tl.constexpr,
):
    """Return the int32 sums of a tile, loaded by TMA descriptors, which pad with zeros."""
    sums = _zeros(BLOCK_M, BLOCK_N, TOKENS_ARE_COLUMNS)
    for step in range(first, last):
        x_part = x.load([x_row, step * BLOCK_K])
        w_part = w.load([w_row, step * BLOCK_K])
        sums = _added(x_part, w_part, sums, TOKENS_ARE_COLUMNS)
    return sums


@triton.jit
def _zeros(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TOKENS_ARE_COLUMNS: tl.constexpr):
    ROWS: tl.constexpr = BLOCK_N if TOKENS_ARE_COLUMNS else BLOCK_M
    COLUMNS: tl.constexpr = BLOCK_M if TOKENS_ARE_COLUMNS else BLOCK_N
    return tl.zeros((ROWS, COLUMNS), tl.int32)


@triton.jit
def _added(x_part, w_part, sums, TOKENS_ARE_COLUMNS: tl.constexpr):
    if TOKENS_ARE_COLUMNS:
        return tl.dot(w_part, tl.trans(x_part), sums, out_dtype=tl.int32)
    else:
        return tl.dot(x_part, tl.trans(w_part), sums, out_dtype=tl.int32)


@triton.jit
def _finish(
    sums, x_scale, scale, bias, out, m, n, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BIAS: tl.constexpr
):
    """Dequantize a tile and write it."""
    rows, columns = m * BLOCK_M + tl.arange(0, BLOCK_M), n * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows, in_columns = rows < M, columns < N
    x_scales = tl.load(x_scale + rows, mask=in_rows, other=0.0)
    scales = tl.load(scale + columns, mask=in_columns, other=0.0)
    values = sums.to(tl.float32) * scales[None, :]
    if BIAS:
        biases = tl.load(bias + columns, mask=in_columns, other=0.0).to(tl.float32)
        values = multiply_add(values, x_scales[:, None], biases[None, :])
    else:
        values = values * x_scales[:, None]
    # the interpreter's cast to BF16 truncates
    values = cast(values, out.dtype.element_ty) if INTERPRETED else values.to(out.dtype.element_ty)
    at = out + rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(at, values, mask=in_rows[:, None] & in_columns[None, :])
