"""The definition of the schemes in plain PyTorch, float32, on any device. Kernels must agree with it.

quantize.py     codes and scales of a weight, and back
products.py     what a layer computes with them
fingerprint.py  digests of bytes

Shape suffixes: E experts, M tokens, N output channels, K input channels, T experts per token, G groups of a row.
"""

from ascend_quant.oracle.fingerprint import (
    COLUMN_STEP,
    LANE,
    ROW_MIX,
    ROW_SEEDS,
    add_digests,
    as_integers,
    as_matrix,
    column_weights,
    digest,
    last_dimension,
    row_weights,
    weights_of_rows,
)
from ascend_quant.oracle.products import experts, matmul, product, round_trip_fp8_groups
from ascend_quant.oracle.quantize import (
    BLOCK,
    FP8_MAX,
    INT4_MAX,
    INT8_MAX,
    INT8_MIN,
    TINY,
    dequantize,
    pack_int4,
    quantize,
    quantize_fp8_blocks,
    quantize_fp8_rows,
    quantize_fp8_tensor,
    quantize_fp8_tokens,
    quantize_given,
    quantize_groups,
    quantize_rows,
    quantize_weight,
    scale_of,
    smoothed,
    unpack_int4,
)

__all__ = [
    "BLOCK",
    "COLUMN_STEP",
    "FP8_MAX",
    "INT4_MAX",
    "INT8_MAX",
    "INT8_MIN",
    "LANE",
    "ROW_MIX",
    "ROW_SEEDS",
    "TINY",
    "add_digests",
    "as_integers",
    "as_matrix",
    "column_weights",
    "dequantize",
    "digest",
    "experts",
    "last_dimension",
    "matmul",
    "pack_int4",
    "product",
    "quantize",
    "quantize_fp8_blocks",
    "quantize_fp8_rows",
    "quantize_fp8_tensor",
    "quantize_fp8_tokens",
    "quantize_given",
    "quantize_groups",
    "quantize_rows",
    "quantize_weight",
    "round_trip_fp8_groups",
    "row_weights",
    "scale_of",
    "smoothed",
    "unpack_int4",
    "weights_of_rows",
]
