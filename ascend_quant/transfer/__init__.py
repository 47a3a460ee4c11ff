"""The data that a weight sync transfers from a trainer to an engine, and its checks on both sides.

validate.py      validation of tensors: plain floats, contiguous where kernels need it, unique names
prequantized.py  pre-quantized rows, each followed by its scale
delta.py         the bytes that changed since the last sync (delta_base.py: the bytes of that sync; delta_layout.py: the
                 byte layout of a group of tensors)
checksums.py     digests of what was sent, compared with digests of what was received
digests.py       digests of tensors, taken in parts, and their comparison
"""

from ascend_quant.transfer.errors import RefitError

__all__ = ["RefitError"]
