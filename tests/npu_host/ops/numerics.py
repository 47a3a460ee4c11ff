"""The arithmetic that the reference kernels share: exact integer sums, float32 scales, one rounding at the end.

Shape suffixes: E experts, M rows, N output columns, K input columns.
"""

import torch

INT8_MAX = 127.0


def quantize_rows(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 codes and float32 scales a row: scale = absmax / 127, code = round-half-even(value / scale).

    A row of zeros has scale 0 and codes 0. Tensors are divided by tensors: by a Python number, some backends
    multiply with its reciprocal.
    """
    values = values.float()
    absmax = values.abs().amax(dim=-1)
    scale = absmax / torch.full_like(absmax, INT8_MAX)
    ratio = values / scale.unsqueeze(-1)
    return torch.where(scale.unsqueeze(-1) > 0, ratio, 0.0).round().clamp(-128, 127).to(torch.int8), scale


def integer_matmul(x_MK: torch.Tensor, w_KN: torch.Tensor) -> torch.Tensor:
    """The exact int32 product of int8 matrices; float64 holds every sum that int32 does."""
    return (x_MK.double() @ w_KN.double()).to(torch.int32)


def dequantize(sums_MN: torch.Tensor, scale_N: torch.Tensor, per_token_M: torch.Tensor | None = None) -> torch.Tensor:
    """(sums * scale) * per_token in float32."""
    values = sums_MN.float() * scale_N.float()
    return values if per_token_M is None else values * per_token_M.unsqueeze(-1)


def swiglu(values: torch.Tensor, gate_first: bool = True) -> torch.Tensor:
    """silu(gate) * up of the last dimension's halves, in float32."""
    first, second = values.float().chunk(2, dim=-1)
    gate, up = (first, second) if gate_first else (second, first)
    return gate * torch.sigmoid(gate) * up


def group_counts(group_list: torch.Tensor, cumulative: bool) -> list[int]:
    """Rows of each group."""
    first = torch.zeros(1, dtype=group_list.dtype)
    return (torch.diff(group_list, prepend=first) if cumulative else group_list).tolist()


def padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    """`count` rows, those past the given ones unspecified: NaN or the smallest integer, so that a use of them shows."""
    fill = float("nan") if rows.dtype.is_floating_point else torch.iinfo(rows.dtype).min
    return torch.cat([rows, rows.new_full((count - rows.shape[0], *rows.shape[1:]), fill)])
