"""The definition of the schemes in plain PyTorch, float32, on any device. Kernels must agree with it.

One symmetric rule; what shares a scale is a row over the reduction dimension K, a tensor, or a 128x128 block:

    int8:  scale = absmax / 127  (float32)      code = round_half_even(value / scale), clamped to [-127, 127]
    fp8:   scale = absmax / 448  (float32)      code = value / scale, clamped to [-448, 448], as float8_e4m3fn
    absmax < 2**-100  ->  scale and every code are 0: no weight is so small, and devices differ in their denormals

Weights are rounded to BF16 first (trainers send float32 sometimes; the engine would round as well). A profile's
weights are the exception: they are multiplied by its factors in float32 (`smoothed`) and quantized as they are, with
a scale of their own (`quantize_rows`) or with a given one (`quantize_given`).

Shape suffixes: E experts, M tokens, N output channels, K input channels, T experts per token.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F

INT8_MAX = 127
INT8_MIN = -128  # of codes made with a given scale
FP8_MAX = 448  # the largest float8_e4m3fn
BLOCK = 128
TINY = 2.0**-100


def quantize_rows(values: torch.Tensor, absmax: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of float rows.

    Args:
        values: (..., K) float; taken as they are, in float32.
        absmax: (...) float32, the largest magnitude of each *whole* row when `values` holds a slice of K only
            (a row-parallel shard); by default that of `values`.

    Returns:
        int8 codes (..., K) and float32 scales (...). A NaN or Inf row has a non-finite scale.
    """
    values = values.float()
    if absmax is None:
        absmax = values.abs().amax(dim=-1)
    scale = _scale(absmax, INT8_MAX)
    ratio = torch.where(scale.unsqueeze(-1) == 0, torch.zeros_like(values), values / scale.unsqueeze(-1))
    return ratio.round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8), scale


def quantize_weight(w_NK: torch.Tensor, absmax_N: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (..., N, K) and scales (..., N) of a weight, after rounding it to BF16."""
    return quantize_rows(w_NK.to(torch.bfloat16), absmax_N)


def smoothed(
    w_NK: torch.Tensor,
    input_factor_K: torch.Tensor | None = None,
    output_factor_N: torch.Tensor | None = None,
    rounded: bool = False,
) -> torch.Tensor:
    """w_NK * input_factor_K * output_factor_N[:, None] in float32, after rounding w to BF16; a new, contiguous tensor.

    Args:
        w_NK: any float dtype; a vector (N) is taken for one column.
        input_factor_K: float32, (N) for a vector; None for all ones.
        output_factor_N: float32, None for all ones.
        rounded: round to BF16 after each factor, as tools do that smooth a BF16 model.
    """
    x_NK = torch.empty_like(w_NK, dtype=torch.float32, memory_format=torch.contiguous_format)
    x_NK.copy_(w_NK.to(torch.bfloat16))
    by_row = None if output_factor_N is None else output_factor_N.view(-1, *[1] * (x_NK.dim() - 1))
    for factor in (input_factor_K, by_row):
        if factor is not None:
            x_NK *= factor
            if rounded:
                x_NK.copy_(x_NK.to(torch.bfloat16))
    return x_NK


def quantize_given(x_NK: torch.Tensor, scale_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 codes of float32 rows with scales that are not their own, and which of them were lost to clamping.

    The codes go from -128 to 127, as FlashRL's and those of llm-compressor's checkpoints do: its scale is
    absmax / 127.5, so that the largest of a row whose sign is - has the code -128.

    Args:
        scale_N: float32, finite, 0 or more; a row of scale 0 has codes 0.

    Returns:
        int8 codes (N, K), and bool (N, K): the rounded quotient was outside [-128, 127], or there was none.
    """
    x_NK, scale_N1 = x_NK.float(), scale_N.unsqueeze(-1)
    zero_N1 = scale_N1 == 0
    rounded_NK = torch.where(zero_N1, 0.0, x_NK / torch.where(zero_N1, 1.0, scale_N1)).round()
    lost_NK = (rounded_NK > INT8_MAX) | (rounded_NK < INT8_MIN) | (zero_N1 & (x_NK != 0))
    return rounded_NK.clamp(INT8_MIN, INT8_MAX).to(torch.int8), lost_NK


def quantize_fp8_rows(w_NK: torch.Tensor, absmax_N: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """float8_e4m3fn codes (..., N, K) and float32 scales (..., N) of a weight, after rounding it to BF16."""
    values = w_NK.to(torch.bfloat16).float()
    absmax_N = values.abs().amax(dim=-1) if absmax_N is None else absmax_N
    return _fp8(values, absmax_N.unsqueeze(-1)), _scale(absmax_N, FP8_MAX)


def quantize_fp8_tensor(w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (N, K) and one scale (): see `quantize_fp8_rows`."""
    values = w_NK.to(torch.bfloat16).float()
    return _fp8(values, values.abs().amax()), _scale(values.abs().amax(), FP8_MAX)


def quantize_fp8_blocks(w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (N, K) and scales (ceil(N / 128), ceil(K / 128)), one a 128x128 block; the last ones may be smaller."""
    values = w_NK.to(torch.bfloat16).float()
    rows, columns = values.shape
    padded = F.pad(values, (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    absmax = blocks.abs().amax(dim=(1, 3))
    whole = absmax.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :columns]
    return _fp8(values, whole), _scale(absmax, FP8_MAX)


def _scale(absmax: torch.Tensor, largest: int) -> torch.Tensor:
    """absmax / largest, correctly rounded: by a Python number, torch on CUDA multiplies with its reciprocal."""
    absmax = absmax.float()
    return torch.where(absmax < TINY, 0.0, absmax / torch.full_like(absmax, largest))


def _fp8(values: torch.Tensor, absmax: torch.Tensor) -> torch.Tensor:
    scale = _scale(absmax, FP8_MAX)
    ratio = torch.where(scale == 0, torch.zeros_like(values), values / scale)
    return ratio.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def dequantize(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The float32 values (..., K) that `codes` (..., K) with `scale` (...) stand for."""
    return codes.float() * scale.unsqueeze(-1)


def matmul(
    x_MK: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """The W8A8 product x_MK @ w_NK.T + bias_N, in float32 (M, N).

    Activations are quantized per token; the sum over K of integer products is exact (float64 holds it for
    K below 2**38); scales multiply in the order activation, weight.
    """
    x_codes_MK, x_scale_M = quantize_rows(x_MK)
    sum_MN = (x_codes_MK.double() @ codes_NK.double().T).float()
    out_MN = sum_MN * x_scale_M.unsqueeze(-1) * scale_N.float()
    return out_MN if bias_N is None else out_MN + bias_N.float()


def experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_codes_ENK: torch.Tensor,
    w13_scale_EN: torch.Tensor,
    w2_codes_EKN: torch.Tensor,
    w2_scale_EK: torch.Tensor,
) -> torch.Tensor:
    """A mixture of SwiGLU experts, in float32 (M, K): sum over t of weight * down(silu(gate(x)) * up(x)).

    Args:
        weight_MT: routing weight of each of a token's experts.
        expert_MT: their indices into E; an index outside [0, E) contributes nothing (an expert of another rank).
        w13_codes_ENK: gate rows, then up rows (N = 2 * intermediate size).
        w2_codes_EKN: down projection (N = intermediate size).
    """
    out_MK = torch.zeros(x_MK.shape, dtype=torch.float32, device=x_MK.device)
    for expert in range(w13_codes_ENK.shape[0]):
        token, slot = (expert_MT == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate, up = matmul(x_MK[token], w13_codes_ENK[expert], w13_scale_EN[expert]).chunk(2, dim=-1)
        down = matmul(F.silu(gate) * up, w2_codes_EKN[expert], w2_scale_EK[expert])
        out_MK.index_add_(0, token, down * weight_MT[token, slot].float().unsqueeze(-1))
    return out_MK


COLUMN_STEP = 0x3C6EF372  # even, so that 1 + c * COLUMN_STEP is odd
ROW_SEEDS = (0x9E3779B1, 0x85EBCA77)
ROW_MIX = 0x7FEB352D
LANE = 2**32


def digest(values: torch.Tensor, first_row: int = 0, first_column: int = 0) -> int:
    """A 64-bit fingerprint of a tensor's bytes, the same on every device: two sums modulo 2**32, side by side.

    Rows run along every dimension but the last (a vector is a column); elements of 8 bytes count as two columns.
    With v_rc an element's bits as a signed integer, sum k (k = 0 the low one) is that of v_rc * a(c) * b_k(r), every
    a and b odd. Any single changed element changes both sums; and they are bilinear: parts, each with its own first
    row and column, add up to the whole in any order (`add_digests`).
    """
    bits = as_integers(as_matrix(values)).to(torch.int64)
    rows = (bits * column_weights(first_column, bits.shape[1], bits.device)).sum(dim=1) % LANE
    return sum(
        int((rows * row_weights(first_row, rows.numel(), rows.device, seed) % LANE).sum()) % LANE << 32 * k
        for k, seed in enumerate(ROW_SEEDS)
    )


def add_digests(*digests: int, weights: Iterable[int] | None = None) -> int:
    """The sum of digests, lane by lane, each times its weight (1 if none are given)."""
    pairs = list(zip(digests, weights or (1,) * len(digests), strict=True))
    low, high = (sum((one >> shift) % LANE * weight for one, weight in pairs) % LANE for shift in (0, 32))
    return low + (high << 32)


def column_weights(first: int, count: int, device: torch.device) -> torch.Tensor:
    """a(c) = 1 + c * COLUMN_STEP modulo 2**32, as int64 in [0, 2**32)."""
    return (torch.arange(first, first + count, dtype=torch.int64, device=device) * COLUMN_STEP + 1) % LANE


def row_weights(first: int, count: int, device: torch.device, seed: int) -> torch.Tensor:
    """b(r) of consecutive rows, see `weights_of_rows`."""
    return weights_of_rows(torch.arange(first, first + count, dtype=torch.int64, device=device), seed)


def weights_of_rows(rows: torch.Tensor, seed: int) -> torch.Tensor:
    """b(r): r times an odd seed, its halves mixed, made odd; as int64 in [0, 2**32)."""
    product = rows % LANE * seed % LANE
    return (product ^ product >> 16) * ROW_MIX % LANE | 1


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Rows along every dimension but the last; a vector is a column."""
    tensor = tensor.detach()
    if tensor.dim() < 2:
        return tensor.reshape(-1, 1)
    return tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])


def as_integers(matrix: torch.Tensor) -> torch.Tensor:
    """The elements' bits as signed integers of the same width; 8 bytes as two integers of 4."""
    if matrix.element_size() == 8:
        matrix = matrix.clone(memory_format=torch.contiguous_format)
    return matrix.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}[matrix.element_size()])
