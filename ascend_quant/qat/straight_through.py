"""dequantize(quantize(w)) with the gradient of w itself (the straight-through estimator of Bengio, Leonard and
Courville, 2013): rounding has no useful gradient, and training updates the weights in their own precision.

The values are BF16(code * scale), in the dtype of w: those that the engine computes with, bit for bit. Only int4 is
supported: an int8 engine rounds activations too, which fake-quantized weights do not reproduce (see `exact`).
"""

import torch
from torch.distributed.tensor import DTensor

from ascend_quant.kernels import kernels_for
from ascend_quant.schemes import Scheme, UnknownScheme, get_scheme

SCHEMES = ("int4_g128", "int4_g32")


def fake_quantize(w_NK: torch.Tensor, scheme: str | Scheme) -> torch.Tensor:
    """Return the values that the engine computes with for w (..., N, K), in w's dtype; w itself is not changed.

    Args:
        w_NK: any float dtype, on a device with kernels (cpu, cuda, npu); whole rows, or whole groups of them.
        scheme: one of `SCHEMES`.

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
    return _StraightThrough.apply(w_NK, trainable_scheme(scheme))


def trainable_scheme(scheme: str | Scheme) -> Scheme:
    """Return the scheme; raise UnknownScheme if fake quantization does not support it."""
    name = scheme.name if isinstance(scheme, Scheme) else scheme
    if name not in SCHEMES:
        raise UnknownScheme(
            f"fake quantization does not support scheme {name!r}; supported: {', '.join(SCHEMES)}. Rollouts in other "
            "schemes need importance weights per token; for int8 ones, ascend_quant.exact.apply_exact can replace them"
        )
    return get_scheme(name)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w_NK: torch.Tensor, scheme: Scheme) -> torch.Tensor:
        return kernels_for(w_NK.device).fake_quantize(w_NK, scheme)

    @staticmethod
    def backward(ctx, grad_NK: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad_NK, None
