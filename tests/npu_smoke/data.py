"""Weights and activations, made on the host: the same on every machine."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ascend_quant import oracle
from ascend_quant.kernels.npu_formats import FRACTAL_NZ
from npu_smoke.checks import NotPossible, Setting


def generator(seed: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed)


def operator(name: str):
    """An operator of torch_npu.

    Raises:
        NotPossible: this version has none of that name.
    """
    import torch_npu

    if not hasattr(torch_npu, name):
        raise NotPossible(f"torch_npu {torch_npu.__version__} has no {name}")
    return getattr(torch_npu, name)


def floats(count: int, seed: int, exponents: int = 30) -> torch.Tensor:
    """float32 with any sign and mantissa, exponents from -exponents to +exponents."""
    made = generator(seed)
    mantissas = 1 + torch.randint(0, 1 << 23, (count,), generator=made).double() / (1 << 23)
    powers = torch.randint(-exponents, exponents + 1, (count,), generator=made).double()
    signs = torch.randint(0, 2, (count,), generator=made).double() * 2 - 1
    return (signs * mantissas * 2.0**powers).float()


def weights(*shape: int, seed: int, scale: float = 0.02) -> torch.Tensor:
    """BF16 (.., N, K) on the host, rows of different size."""
    made = generator(seed)
    rows = torch.rand(*shape[:-1], 1, generator=made) * scale + scale / 2
    return (torch.randn(*shape, generator=made) * rows).to(torch.bfloat16)


def awkward(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Weights whose first rows are of kinds that a kernel may get wrong: zeros, hardly more, ties, halves of the
    largest, and the largest BF16."""
    w_NK = weights(rows, columns, seed=seed)
    made = generator(seed + 1)
    integers = torch.randint(-254, 255, (columns,), generator=made).float()
    integers[0] = 254  # the scale is 2, every odd number a tie
    kinds = [
        torch.zeros(columns),
        w_NK[0].float().sign() * 2.0**-110,
        w_NK[0].float().sign() * 2.0**-99,
        integers,
        torch.where(integers > 0, 1.0, -0.5) * 0.0123,
        w_NK[0].float().sign() * torch.finfo(torch.bfloat16).max,
    ]
    for row, values in enumerate(kinds[:rows]):
        w_NK[row] = values.to(torch.bfloat16)
    return w_NK


def transposed(codes_NK: torch.Tensor, on: Setting, nz: bool) -> torch.Tensor:
    """(.., K, N) codes on the device, as the engine computes with them."""
    plain = on.put(codes_NK.transpose(-1, -2).contiguous())
    return operator("npu_format_cast")(plain, FRACTAL_NZ) if nz else plain


@dataclass
class Tokens:
    """Activations (M, K) with the oracle's codes and scales."""

    x_MK: torch.Tensor

    def __post_init__(self) -> None:
        self.codes_MK, self.scale_M = oracle.quantize_rows(self.x_MK)

    @classmethod
    def of(cls, count: int, length: int, seed: int) -> "Tokens":
        return cls(torch.randn(count, length, generator=generator(seed)).to(torch.bfloat16))

    def sums(self, codes_NK: torch.Tensor) -> torch.Tensor:
        """(M, N): the exact products, float64."""
        return self.codes_MK.double() @ codes_NK.double().T


def shares(rows: int, experts: int) -> dict[str, Sequence[int]]:
    """Rows of each expert: evenly, some experts without, all to one."""
    each = rows // experts
    even = [each] * (experts - 1) + [rows - each * (experts - 1)]
    holes = [0 if expert % 2 == 0 else 2 * each for expert in range(experts)]
    holes[-1] += rows - sum(holes)
    one = [0] * experts
    one[experts // 2] = rows
    return {"even": even, "empty experts": holes, "all to one": one}


def nearby(count: int, largest: int) -> torch.Tensor:
    """Integers up to `largest` in int64, with the ends and powers of two and their neighbours."""
    powers = [2**power + step for power in range(int(math.log2(largest))) for step in (-1, 0, 1)]
    random = torch.randint(-largest, largest + 1, (count,), generator=generator(5), dtype=torch.int64)
    random[: len(powers)] = torch.tensor(powers)[:count]
    random[-2:] = torch.tensor([largest, -largest])
    return random
