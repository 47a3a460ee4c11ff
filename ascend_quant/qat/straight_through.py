"""dequantize(quantize(w)) with the gradient of w itself (the straight-through estimator of Bengio, Leonard and
Courville, 2013): rounding has no useful gradient, and training updates the weights in their own precision.

The values equal those of the engine's codes and scales bit for bit, see `kernels/fallbacks.py`:
    int4   BF16(code * scale)                                   in the dtype of w
    int8   code * scale, a float32 product rounded once         to the dtype of w
"""

import math

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ascend_quant.kernels import kernels_for
from ascend_quant.schemes import Scheme, UnknownScheme, get_scheme

SCHEMES = ("int4_g128", "int4_g32", "int8")


def fake_quantize(w_NK: torch.Tensor, scheme: str | Scheme, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return the values that the engine computes with for w (..., N, K), in w's dtype; w itself is not changed.

    Args:
        w_NK: any float dtype, on a device with kernels (cpu, cuda, npu).
        scheme: one of `SCHEMES`.
        group: ranks over which K is split, if w is this rank's part (a row-parallel layer): the scale of an int8 row is
            that of the whole row, so all ranks must call this together. None if w has whole rows.

    Raises:
        UnknownScheme: the scheme is not supported; the message names those that are.
        ValueError: K is not a multiple of the scheme's group size.
        TypeError: a DTensor.
    """
    if isinstance(w_NK, DTensor):
        raise TypeError(
            f"a DTensor ({w_NK.placements}) cannot be fake-quantized: pass the local tensor; FSDP2 unshards "
            "parameters only if the module is called, not its forward method"
        )
    return _StraightThrough.apply(w_NK, trainable_scheme(scheme), group)


def trainable_scheme(scheme: str | Scheme) -> Scheme:
    """Return the scheme; raise UnknownScheme if fake quantization does not support it."""
    name = scheme.name if isinstance(scheme, Scheme) else scheme
    if name not in SCHEMES:
        raise UnknownScheme(f"fake quantization does not support scheme {name!r}; supported: {', '.join(SCHEMES)}")
    return get_scheme(name)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w_NK: torch.Tensor, scheme: Scheme, group: dist.ProcessGroup | None) -> torch.Tensor:
        split = group is not None and group.size() > 1 and scheme.shares == "row"
        absmax_N = _absmax_of_whole_rows(w_NK, group) if split else None
        return kernels_for(w_NK.device).fake_quantize(w_NK, scheme, absmax_N)

    @staticmethod
    def backward(ctx, grad_NK: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad_NK, None, None


def _absmax_of_whole_rows(w_NK: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the absmax over all ranks, float32 (..., N); Inf for NaN, which some backends' max drops."""
    absmax_N = w_NK.to(torch.bfloat16).abs().amax(-1).float().nan_to_num(nan=math.inf, posinf=math.inf)
    dist.all_reduce(absmax_N, dist.ReduceOp.MAX, group=group)
    return absmax_N
