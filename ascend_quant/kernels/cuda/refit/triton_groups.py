"""Fake quantization to int4 in Triton: dequantize(quantize(w)) in one pass over the weight.

A program takes a few groups. Where rows begin does not matter, since groups share nothing.
"""

import torch
import triton
import triton.language as tl

from ascend_quant.kernels.cuda import triton_elements as elements
from ascend_quant.schemes import Scheme

TILE = 4096  # elements per program
TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@triton.jit
def fake_quantize_groups(
    source,
    target,
    count,  # of groups
    GROUP: tl.constexpr,  # elements of a group
    GROUPS: tl.constexpr,  # groups per program
    TARGET_TYPE: tl.constexpr,
):
    groups = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    valid = (groups < count)[:, None]
    at = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    values = elements.rounded(tl.load(source + at, mask=valid, other=0.0))
    # as integers, magnitudes sort like the values, with NaN above all of them
    absmax = tl.max(elements.magnitude(values), 1).to(tl.float32, bitcast=True)
    scale = elements.int4_scale(absmax)[:, None]
    # not finite if the scale is not, whatever the code
    served = elements.rounded(elements.int4_code(values, scale).to(tl.float32) * scale)
    tl.store(target + at, elements.cast(served, TARGET_TYPE), mask=valid)


def fake_quantize(w_NK: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """Compute the bytes of `fallbacks.fake_quantize`; a weight that is not contiguous is copied first.

    Raises:
        ValueError: K is not a multiple of the scheme's group, or the dtype has no kernel.
    """
    if w_NK.dtype not in TYPES:
        raise ValueError(f"fake quantization of {w_NK.dtype} is not supported; supported: {', '.join(map(str, TYPES))}")
    if w_NK.shape[-1] % scheme.group:
        raise ValueError(f"rows of {w_NK.shape[-1]} elements are not divisible into int4 groups of {scheme.group}")
    w_NK = w_NK.detach().contiguous()
    out_NK = torch.empty_like(w_NK)
    if out_NK.numel() == 0:
        return out_NK
    count, constants = w_NK.numel() // scheme.group, constants_of(scheme, TYPES[w_NK.dtype])
    with torch.cuda.device_of(w_NK):
        fake_quantize_groups[(triton.cdiv(count, constants["GROUPS"]),)](w_NK, out_NK, count, **constants)
    return out_NK


def constants_of(scheme: Scheme, target: tl.dtype) -> dict[str, object]:
    """Return the compile-time constants of the fake quantization kernel."""
    return {"GROUP": scheme.group, "GROUPS": TILE // scheme.group, "TARGET_TYPE": target}
