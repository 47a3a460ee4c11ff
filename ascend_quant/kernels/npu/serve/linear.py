"""The W8A8 linear layer on an NPU, with torch_npu's int8 operators.

Weights are multiplied as (K, N), which is how residents lie (refit/formats.py), in ND or in FRACTAL_NZ. The interface
has (N, K): hand over `resident.t()`, a view that is turned back here.

How it differs from the oracle: an activation's code is round_half_even(x * (127 / absmax)), a product where the oracle
divides; a bias is added to the rounded product, where the oracle has a fused multiply-add.

What torch.compile and torch.export trace holds no branch on the number of tokens and no wait for the device.
Shape suffixes: M tokens, K input channels, N output channels.
"""

import torch

from ascend_quant.kernels.npu.ops import check_dtype, operator

PRODUCT = "npu_quant_matmul"
LONGEST = 65535  # last dimension of a product's operands


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 codes (.., K) and float32 scales (..) of bfloat16 or float16 rows (.., K), a scale a row.

    Raises:
        ValueError: another dtype.
    """
    if x.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"activations in {x.dtype}: npu_dynamic_quant takes bfloat16 and float16; cast them")
    return operator("npu_dynamic_quant")(x)


def matmul(
    x: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """The W8A8 product of `oracle.matmul` for x (.., K), in x's dtype: see `linear`."""
    return linear(x, codes_NK.t(), scale_N, bias_N)


def linear(
    x: torch.Tensor, codes_KN: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """x (.., K) quantized per token, times codes (K, N), plus bias; rounded once, to x's dtype.

    Args:
        codes_KN: int8, in ND or FRACTAL_NZ.
        scale_N: float32, for bfloat16 x also bfloat16.
        bias_N: float32 or of x's dtype.

    Raises:
        ValueError: dtypes or sizes that the operators do not take.
    """
    _check_product(codes_KN, x.shape[-1], bias_N)
    x_codes_MK, x_scale_M = quantize_rows(x.reshape(-1, x.shape[-1]))
    product = operator("npu_quant_matmul")
    out_MN = product(x_codes_MK, codes_KN, scale_N, pertoken_scale=x_scale_M, bias=bias_N, output_dtype=x.dtype)
    return out_MN.view(*x.shape[:-1], codes_KN.shape[1])


def _check_product(codes_KN: torch.Tensor, length: int, bias_N: torch.Tensor | None) -> None:
    if codes_KN.dtype != torch.int8:
        check_dtype(codes_KN.dtype)
        raise ValueError(f"weight codes in {codes_KN.dtype}: these kernels multiply int8")
    rows, columns = codes_KN.shape
    if rows != length:
        raise ValueError(f"x of K = {length} cannot be multiplied with codes of (K, N) = {(rows, columns)}")
    if max(rows, columns) > LONGEST:
        raise ValueError(
            f"codes of (K, N) = {(rows, columns)}: npu_quant_matmul takes up to {LONGEST}; split the layer"
        )
    if bias_N is not None and not bias_N.dtype.is_floating_point:
        raise ValueError(f"a bias in {bias_N.dtype} would be added before the scales are: give it as float32")
