"""The reference implementation of the schemes in plain PyTorch, float32, on any device. Kernels must agree with it.

weights.py      quantization and dequantization of weights, and results of layers, as defined by the scheme's file
fingerprint.py  checksums of bytes
cache.py        an int8 KV cache, and attention over it
key_balance.py  SmoothAttention factors of the key channels for such a cache

Shape suffixes: E experts, M tokens, N output channels, K input channels, T experts per token, G groups of a row.
"""

from ascend_quant.oracle.fingerprint import (
    PRIME,
    add_digests,
    as_bytes,
    as_integers,
    as_matrix,
    byte_weights,
    column_weights,
    digest,
    weights_of_rows,
)
from ascend_quant.oracle.weights import dequantize, experts, largest_scale, matmul, product, quantize, spoilt_rows
from ascend_quant.schemes.arithmetic import (
    BLOCK,
    FP8_MAX,
    INT4_MAX,
    INT8_MAX,
    INT8_MIN,
    NIBBLES,
    TINY,
    pack_int4,
    quantize_fp8_blocks,
    quantize_fp8_rows,
    quantize_fp8_tensor,
    quantize_fp8_tokens,
    quantize_given,
    quantize_groups,
    quantize_rows,
    quantize_weight,
    round_trip_fp8_groups,
    scale_of,
    smoothed,
    unpack_int4,
)

__all__ = [
    "BLOCK",
    "FP8_MAX",
    "INT4_MAX",
    "INT8_MAX",
    "INT8_MIN",
    "NIBBLES",
    "PRIME",
    "TINY",
    "add_digests",
    "as_bytes",
    "as_integers",
    "as_matrix",
    "byte_weights",
    "column_weights",
    "dequantize",
    "digest",
    "experts",
    "largest_scale",
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
    "scale_of",
    "smoothed",
    "spoilt_rows",
    "unpack_int4",
    "weights_of_rows",
]
