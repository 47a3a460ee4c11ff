"""What travels from a trainer to an engine in a weight sync, and how both sides check it.

validate.py      a tensor that may be sent: plain floats, contiguous where kernels read it, each name once
prequantized.py  rows that travel as codes with their scale behind them
delta.py         the bytes that changed since the last sync
checksums.py     digests of what was sent, compared with digests of what was received
"""

from ascend_quant.transfer.errors import RefitError

__all__ = ["RefitError"]
