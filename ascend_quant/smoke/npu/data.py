"""Weights and activations for the probes, generated on the host, the same on every machine."""

from collections.abc import Sequence

import torch

from ascend_quant.kernels.npu.refit.formats import new_codes
from ascend_quant.kernels.storage import Storage
from ascend_quant.smoke.probes import On

SEVEN_B = ((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944))  # (N, K) of Qwen2.5-7B's linear layers
EXPERTS = ((128, 1536, 2048), (128, 2048, 768))  # (E, N, K) of Qwen3-30B-A3B's experts


def generator(seed: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed)


def tokens(count: int, length: int, seed: int) -> torch.Tensor:
    """Return BF16 activations (M, K)."""
    return torch.randn(count, length, generator=generator(seed)).to(torch.bfloat16)


def weights(*shape: int, seed: int) -> torch.Tensor:
    """Return BF16 weights (.., N, K), with rows of different magnitude."""
    made = generator(seed)
    rows = torch.rand(*shape[:-1], 1, generator=made) * 0.02 + 0.01
    return (torch.randn(*shape, generator=made) * rows).to(torch.bfloat16)


def awkward(*shape: int, seed: int) -> torch.Tensor:
    """Return weights whose first rows are edge cases: zeros, tiny values, ties, halves, the largest BF16."""
    w_NK, columns = weights(*shape, seed=seed), shape[-1]
    whole = torch.randint(-254, 255, (columns,), generator=generator(seed + 1)).float()
    whole[0] = 254  # the scale is 2, so odd numbers are ties
    signs = w_NK.flatten(0, -2)[0].float().sign()
    kinds = [
        torch.zeros(columns),
        signs * 2.0**-110,
        signs * 2.0**-99,
        whole,
        torch.where(whole > 0, 1.0, -0.5) * 0.0123,
        signs * torch.finfo(torch.bfloat16).max,
    ]
    w_NK.flatten(0, -2)[: len(kinds)] = torch.stack(kinds).to(torch.bfloat16)
    return w_NK


def storage(shape: Sequence[int], nz: bool, on: On) -> Storage:
    """Allocate the buffers of a weight (.., N, K) as in an engine: codes (.., K, N), in ND or FRACTAL_NZ."""
    with on.device:
        layout = new_codes((*shape[:-2], shape[-1], shape[-2]), nz)
        scale = torch.zeros(*shape[:-1])
    return Storage(layout.tensor, scale, scale, layout)


def codes_there(codes_NK: torch.Tensor, nz: bool, on: On) -> torch.Tensor:
    """Create codes (.., K, N) on the device, written as by a refit."""
    made = storage(codes_NK.shape, nz, on)
    made.layout.write(0, on.put(codes_NK.flatten(0, -2)))
    return made.codes
