"""CPU kernels: the oracle in chunks of rows, with torch's int8 matrix product.

Chunks keep the float32 work space small and in cache: 256 rows of a 172 MiB shard need 24 MiB, not 778 MiB.
"""

import logging

import torch
import torch.nn.functional as F

from ascend_quant import oracle

logger = logging.getLogger(__name__)

ROWS = 256
ELEMENTS = 1 << 20


def quantize_into(
    source_NK: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, whole_NL: torch.Tensor | None = None
) -> tuple[int, int]:
    """Quantize a weight's rows into resident rows.

    Args:
        source_NK: float (N, K), any strides.
        codes_NK: int8 (N, K) view of the resident codes, written in place.
        scale_N: float32 (N) view of the resident scales, written in place.
        whole_NL: the rows that `source_NK` is a slice of (L > K), which the scales are taken from.

    Returns:
        How many elements were not finite, and how many codes changed.
    """
    nonfinite = changed = 0
    for start in range(0, source_NK.shape[0], ROWS):
        rows = slice(start, start + ROWS)
        absmax = None if whole_NL is None else whole_NL[rows].to(torch.bfloat16).float().abs().amax(dim=-1)
        codes, scale = oracle.quantize_weight(source_NK[rows], absmax)
        if not torch.isfinite(scale).all():
            nonfinite += count_nonfinite(source_NK[rows])
        changed += int((codes != codes_NK[rows]).sum())
        codes_NK[rows].copy_(codes)
        scale_N[rows].copy_(scale)
    return nonfinite, changed


def copy_into(source: torch.Tensor, target: torch.Tensor) -> int:
    """Copy into a resident view of the same shape, in its dtype; returns how many elements were not finite."""
    if source.dim() == 0:
        source, target = source[None], target[None]
    step = max(1, ELEMENTS * source.shape[0] // max(1, source.numel()))
    nonfinite = 0
    for start in range(0, source.shape[0], step):
        part = slice(start, start + step)
        nonfinite += count_nonfinite(source[part])
        target[part].copy_(source[part])
    return nonfinite


def count_nonfinite(values: torch.Tensor) -> int:
    """How many elements are NaN or Inf."""
    return int((~torch.isfinite(values)).sum())


def matmul(
    x: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """The W8A8 product of `oracle.matmul` for x (..., K), in x's dtype."""
    x_codes_MK, x_scale_M = oracle.quantize_rows(x.reshape(-1, x.shape[-1]))
    out_MN = _scaled_product(x_codes_MK, x_scale_M, codes_NK, scale_N)
    if bias_N is not None:
        out_MN = out_MN + bias_N.float()
    return out_MN.to(x.dtype).view(*x.shape[:-1], codes_NK.shape[0])


def experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_codes_ENK: torch.Tensor,
    w13_scale_EN: torch.Tensor,
    w2_codes_EKN: torch.Tensor,
    w2_scale_EK: torch.Tensor,
) -> torch.Tensor:
    """The mixture of `oracle.experts`, in x's dtype; each token is quantized once for all its experts."""
    out_MK = torch.zeros(x_MK.shape, dtype=torch.float32, device=x_MK.device)
    x_codes_MK, x_scale_M = oracle.quantize_rows(x_MK)
    for expert in range(w13_codes_ENK.shape[0]):
        token, slot = (expert_MT == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate_up = _scaled_product(x_codes_MK[token], x_scale_M[token], w13_codes_ENK[expert], w13_scale_EN[expert])
        gate, up = gate_up.chunk(2, dim=-1)
        hidden_codes, hidden_scale = oracle.quantize_rows(F.silu(gate) * up)
        down = _scaled_product(hidden_codes, hidden_scale, w2_codes_EKN[expert], w2_scale_EK[expert])
        out_MK.index_add_(0, token, down * weight_MT[token, slot].float().unsqueeze(-1))
    return out_MK.to(x_MK.dtype)


def digest(values: torch.Tensor) -> int:
    """`oracle.digest` in chunks: a chunk's sum, shifted to its first index, is part of the whole's sum."""
    bits = oracle.as_integers(values)
    total = 0
    for start in range(0, bits.numel(), ELEMENTS):
        part = bits[start : start + ELEMENTS].to(torch.int64)
        total += int((part * oracle.digest_weights(start, part.numel(), part.device)).sum())
    return total % 2**64


def int_mm_is_exact() -> bool:
    """Whether torch._int_mm is exact on this processor, tried with the largest codes.

    Without VNNI, some builds add pairs of products in int16, which saturates.
    """
    x, w = torch.full((2, 64), 127, dtype=torch.int8), torch.full((3, 64), -127, dtype=torch.int8)
    exact = bool((torch._int_mm(x, w.t()) == -127 * 127 * 64).all())
    if not exact:
        logger.warning("torch._int_mm saturates on this processor: int8 products run in float64, exact but slow")
    return exact


INT_MM_IS_EXACT = int_mm_is_exact()  # once, at import: torch.compile traces what calls it


def _integer_product(x_codes_MK: torch.Tensor, codes_NK: torch.Tensor) -> torch.Tensor:
    if codes_NK.shape[1] == 1:  # torch 2.13's _int_mm is wrong for K = 1
        return x_codes_MK.int() * codes_NK.int().T
    if INT_MM_IS_EXACT:
        return torch._int_mm(x_codes_MK, codes_NK.t())
    return x_codes_MK.double() @ codes_NK.double().T


def _scaled_product(
    x_codes_MK: torch.Tensor, x_scale_M: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor
) -> torch.Tensor:
    sum_MN = _integer_product(x_codes_MK, codes_NK)
    return sum_MN.float() * x_scale_M.unsqueeze(-1) * scale_N


def plain_experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_ENK: torch.Tensor,
    w2_EKN: torch.Tensor,
) -> torch.Tensor:
    """The mixture of experts without quantization, each product in x's dtype, summed in float32."""
    out_MK = torch.zeros(x_MK.shape, dtype=torch.float32, device=x_MK.device)
    for expert in range(w13_ENK.shape[0]):
        token, slot = (expert_MT == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate, up = F.linear(x_MK[token], w13_ENK[expert]).chunk(2, dim=-1)
        down = F.linear(F.silu(gate) * up, w2_EKN[expert])
        out_MK.index_add_(0, token, down.float() * weight_MT[token, slot].float().unsqueeze(-1))
    return out_MK.to(x_MK.dtype)
