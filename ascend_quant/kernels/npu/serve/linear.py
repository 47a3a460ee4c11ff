"""The W8A8 linear layer on an NPU, with torch_npu's int8 operators.

Weights are multiplied as (K, N), the layout in which they are stored (refit/formats.py), in ND or FRACTAL_NZ. The
interface takes (N, K): pass `resident.t()`, a view that is transposed back here.

Differences from the oracle: an activation's code is round_half_even(x * (127 / absmax)), while the oracle divides; a
bias is added to the rounded product, while the oracle uses a fused multiply-add.

The code that torch.compile and torch.export trace neither branches on the number of tokens nor waits for the device.
Shape suffixes: M tokens, K input channels, N output channels.
"""

import torch

from ascend_quant.kernels.npu.ops import check_dtype, operator

PRODUCT = "npu_quant_matmul"
LONGEST = 65535  # maximum last dimension of an operand


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize bfloat16 or float16 rows (.., K) to int8 codes (.., K), with one float32 scale (..) per row.

    Raises:
        ValueError: another dtype.
    """
    if x.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"activations in {x.dtype}: npu_dynamic_quant supports bfloat16 and float16; cast them")
    return operator("npu_dynamic_quant")(x)


def matmul(
    x: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute the W8A8 product of `oracle.matmul` for x (.., K), in x's dtype: see `linear`."""
    return linear(x, codes_NK.t(), scale_N, bias_N)


def linear(
    x: torch.Tensor, codes_KN: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply x (.., K), quantized per token, by codes (K, N) and add the bias; rounded once, to x's dtype.

    Args:
        codes_KN: int8, in ND or FRACTAL_NZ.
        scale_N: float32; bfloat16 is also allowed for bfloat16 x.
        bias_N: float32 or x's dtype.

    Raises:
        ValueError: the operators do not support the dtypes or sizes.
    """
    _check_product(codes_KN, x.shape[-1], bias_N)
    x_codes_MK, x_scale_M = quantize_rows(x.reshape(-1, x.shape[-1]))
    product = operator("npu_quant_matmul")
    out_MN = product(x_codes_MK, codes_KN, scale_N, pertoken_scale=x_scale_M, bias=bias_N, output_dtype=x.dtype)
    return out_MN.view(*x.shape[:-1], codes_KN.shape[1])


def _check_product(codes_KN: torch.Tensor, length: int, bias_N: torch.Tensor | None) -> None:
    if codes_KN.dtype != torch.int8:
        check_dtype(codes_KN.dtype)
        raise ValueError(f"weights in {codes_KN.dtype}: these kernels need int8")
    rows, columns = codes_KN.shape
    if rows != length:
        raise ValueError(f"x of K = {length} cannot be multiplied by weights of (K, N) = {(rows, columns)}")
    if max(rows, columns) > LONGEST:
        raise ValueError(
            f"weights of (K, N) = {(rows, columns)}: npu_quant_matmul supports at most {LONGEST}; split the layer"
        )
    if bias_N is not None and not bias_N.dtype.is_floating_point:
        raise ValueError(f"a bias in {bias_N.dtype} would be added before scaling: use a float32 bias")
