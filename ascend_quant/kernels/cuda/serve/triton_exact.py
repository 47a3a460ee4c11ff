"""exact_ops.py on CUDA: norms and SiLU by the kernels that also quantize (triton_fused_tokens.py), and rotations."""

import torch
import triton
import triton.language as tl

from ascend_quant.kernels.cuda.serve import triton_fused_tokens
from ascend_quant.kernels.cuda.triton_early import launch, starts_early, wait

HEADS = 8  # heads of a token that a program rotates


def rms_norm(x: torch.Tensor, weight_K: torch.Tensor, eps: float) -> torch.Tensor:
    """Compute `exact_ops.rms_norm` in BF16."""
    x_MK = x.reshape(-1, x.shape[-1])
    out_MK = torch.empty(x_MK.shape, dtype=x.dtype, device=x.device)
    triton_fused_tokens.norm_into(out_MK, None, x_MK, weight_K, eps, None, rounded=True)
    return out_MK.view(x.shape)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight_K: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `exact_ops.add_rms_norm` in BF16."""
    x_MK, residual_MK = (tensor.reshape(-1, x.shape[-1]) for tensor in (x, residual))
    out_MK = torch.empty(x_MK.shape, dtype=x.dtype, device=x.device)
    total_MK = triton_fused_tokens.norm_into(out_MK, None, x_MK, weight_K, eps, residual_MK, rounded=True)
    return out_MK.view(x.shape), total_MK.view(x.shape)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """Compute `exact_ops.silu_mul` in BF16."""
    return silu_mul_apart(*x.chunk(2, dim=-1))


def silu_mul_apart(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Compute `exact_ops.silu_mul_apart` in BF16."""
    gate_MK, up_MK = (part.reshape(-1, part.shape[-1]) for part in (gate, up))
    out_MK = torch.empty(gate_MK.shape, dtype=gate.dtype, device=gate.device)
    triton_fused_tokens.silu_into(out_MK, None, gate_MK, up_MK, rounded=True)
    return out_MK.view(gate.shape)


def rotate(
    positions_T: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin_PD: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `exact_ops.rotate`; rows may be strided, heads and their elements are contiguous."""
    tokens, size = len(query), cos_sin_PD.shape[1]
    outs = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key)]
    heads = [x.shape[1] // size for x in (query, key)]
    groups = [triton.cdiv(count, HEADS) for count in heads]
    early = starts_early(query.device)
    if tokens:
        with torch.cuda.device_of(query):
            rotate_heads[(tokens, sum(groups))](
                positions_T, query, key, *outs, cos_sin_PD, query.stride(0), key.stride(0),
                *heads, groups[0], size // 2, triton.next_power_of_2(size // 2), HEADS, early,
                num_warps=1, **launch(early),
            )  # fmt: skip
    return outs[0], outs[1]


@triton.jit
def rotate_heads(
    positions,
    query,
    key,
    query_out,
    key_out,
    cos_sin,
    query_stride,  # between tokens
    key_stride,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    QUERY_GROUPS: tl.constexpr,
    HALF: tl.constexpr,  # elements of half a head
    WIDTH: tl.constexpr,  # HALF rounded up to a power of two
    HEADS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Rotate heads (RoPE); a program takes HEADS query or key heads of one token."""
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, WIDTH)[None, :]
    wait(EARLY)
    angles = cos_sin + tl.load(positions + token) * (2 * HALF) + at
    cos = tl.load(angles, mask=at < HALF, other=0.0).to(tl.float32)
    sin = tl.load(angles + HALF, mask=at < HALF, other=0.0).to(tl.float32)
    if group < QUERY_GROUPS:
        first = group * HEADS
        source, target = query + token * query_stride, query_out + token * (QUERY_HEADS * 2 * HALF)
        _rotate(source, target, first, QUERY_HEADS, cos, sin, at, HALF, HEADS)
    else:
        first = (group - QUERY_GROUPS) * HEADS
        source, target = key + token * key_stride, key_out + token * (KEY_HEADS * 2 * HALF)
        _rotate(source, target, first, KEY_HEADS, cos, sin, at, HALF, HEADS)


@triton.jit
def _rotate(source, target, first, COUNT: tl.constexpr, cos, sin, at, HALF: tl.constexpr, HEADS: tl.constexpr):
    head = first + tl.arange(0, HEADS)[:, None]
    inside = (head < COUNT) & (at < HALF)
    place = head * (2 * HALF) + at
    left = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(source + place + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + place, _rounded(left * cos) - _rounded(right * sin), mask=inside)
    tl.store(target + place + HALF, _rounded(right * cos) + _rounded(left * sin), mask=inside)


@triton.jit
def _rounded(x):
    return x.to(tl.bfloat16).to(tl.float32)
