"""Ops besides GEMMs that an exact engine and its trainer share, so that both compute the same bits.

Each op is defined here in torch, and rounds to x's dtype wherever transformers does: the residual sum before the norm,
the normalized row before the weight, each step of the rotation, SiLU before the product. On CUDA, kernels of
triton_exact.py replace them, which round at the same points but sum a row in another order. All ops are
batch-invariant.

They are custom ops because torch.compile would omit roundings and change the order of sums.
"""

import torch
import torch.nn.functional as F


@torch.library.custom_op("ascend_quant::exact_rms_norm", mutates_args=(), device_types="cpu")
def rms_norm(x: torch.Tensor, weight_K: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the RMSNorm of x (..., K), in its dtype."""
    return _rms_norm(x, weight_K, eps)


@torch.library.custom_op("ascend_quant::exact_add_rms_norm", mutates_args=(), device_types="cpu")
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight_K: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the RMSNorm of x + residual (..., K), and this sum, both in their dtype."""
    total = x + residual
    return _rms_norm(total, weight_K, eps), total


@torch.library.custom_op("ascend_quant::exact_silu_mul", mutates_args=(), device_types="cpu")
def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up in the dtype of x (..., 2 * K), which contains gate before up."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


@torch.library.custom_op("ascend_quant::exact_silu_mul_apart", mutates_args=(), device_types="cpu")
def silu_mul_apart(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up for two separate tensors (..., K), as in a trainer."""
    return F.silu(gate) * up


@torch.library.custom_op("ascend_quant::exact_rotate", mutates_args=(), device_types="cpu")
def rotate(
    positions_T: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin_PD: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate query and key (T, heads * D), each head by its token's position, in half-split (NeoX) style.

    Args:
        positions_T: int64.
        cos_sin_PD: for each position D / 2 cosines, then D / 2 sines, in the dtype of query and key.
    """
    cos_T1D, sin_T1D = (half.repeat(1, 2).unsqueeze(1) for half in cos_sin_PD[positions_T].chunk(2, dim=-1))

    def rotated(x: torch.Tensor) -> torch.Tensor:
        x_THD = x.view(len(x), -1, cos_sin_PD.shape[1])
        first, second = x_THD.chunk(2, dim=-1)
        return (x_THD * cos_T1D + torch.cat((-second, first), dim=-1) * sin_T1D).view(x.shape)

    return rotated(query), rotated(key)


def _rms_norm(x: torch.Tensor, weight_K: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return weight_K * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@rms_norm.register_fake
def _(x, weight_K, eps):
    return x.new_empty(x.shape)


@add_rms_norm.register_fake
def _(x, residual, weight_K, eps):
    return x.new_empty(x.shape), x.new_empty(x.shape)


@silu_mul.register_fake
def _(x):
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


@silu_mul_apart.register_fake
def _(gate, up):
    return gate.new_empty(gate.shape)


@rotate.register_fake
def _(positions_T, query, key, cos_sin_PD):
    return query.new_empty(query.shape), key.new_empty(key.shape)


@rms_norm.register_kernel("cuda")
def _(x, weight_K, eps):
    from ascend_quant.kernels.cuda.serve import triton_exact

    return triton_exact.rms_norm(x, weight_K, eps)


@add_rms_norm.register_kernel("cuda")
def _(x, residual, weight_K, eps):
    from ascend_quant.kernels.cuda.serve import triton_exact

    return triton_exact.add_rms_norm(x, residual, weight_K, eps)


@silu_mul.register_kernel("cuda")
def _(x):
    from ascend_quant.kernels.cuda.serve import triton_exact

    return triton_exact.silu_mul(x)


@silu_mul_apart.register_kernel("cuda")
def _(gate, up):
    from ascend_quant.kernels.cuda.serve import triton_exact

    return triton_exact.silu_mul_apart(gate, up)


@rotate.register_kernel("cuda")
def _(positions_T, query, key, cos_sin_PD):
    from ascend_quant.kernels.cuda.serve import triton_exact

    return triton_exact.rotate(positions_T, query, key, cos_sin_PD)
