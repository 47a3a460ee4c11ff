"""The definition of `int8` (W8A8) in plain PyTorch, float32, on any device. Kernels must agree with it.

Weights and activations use one symmetric rule, row by row over the reduction dimension K:

    scale = absmax / 127                              (float32)
    code  = round_half_even(value / scale), clamped to [-127, 127]
    scale == 0  (a zero row, or one below 127 * the smallest float32)  ->  every code is 0

Weights are rounded to BF16 first (trainers send float32 sometimes; the engine would round as well).

Shape suffixes: E experts, M tokens, N output channels, K input channels, T experts per token.
"""

import torch
import torch.nn.functional as F

INT8_MAX = 127


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
    scale = absmax.float() / INT8_MAX
    ratio = torch.where(scale.unsqueeze(-1) == 0, torch.zeros_like(values), values / scale.unsqueeze(-1))
    return ratio.round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8), scale


def quantize_weight(w_NK: torch.Tensor, absmax_N: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (..., N, K) and scales (..., N) of a weight, after rounding it to BF16."""
    return quantize_rows(w_NK.to(torch.bfloat16), absmax_N)


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


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # 2**64 / golden ratio, as a signed 64-bit integer


def digest(values: torch.Tensor) -> int:
    """A 64-bit fingerprint of a tensor's bytes, the same on every device.

    With v_i the i-th element's bits as a signed integer: the sum of v_i * weight(i) modulo 2**64. Sums of parts,
    each with its own first index, add up to the whole; any single changed element changes it.
    """
    bits = as_integers(values).to(torch.int64)
    return int((bits * digest_weights(0, bits.numel(), bits.device)).sum().item()) % 2**64


def digest_weights(first: int, count: int, device: torch.device) -> torch.Tensor:
    """weight(i) = i * 2**64 / golden ratio, made odd (Knuth, The Art of Computer Programming 3, section 6.4)."""
    return torch.arange(first, first + count, dtype=torch.int64, device=device) * _GOLDEN | 1


def as_integers(values: torch.Tensor) -> torch.Tensor:
    """The elements' bits as one flat tensor of signed integers of the same width."""
    flat = values.detach().contiguous().view(-1)
    return flat.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
