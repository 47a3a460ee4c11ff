"""The dtype arguments of NPU operators: torch_npu 2.13 passes ScalarType's numbers, 2.7.1 the dtypes themselves."""

import torch

BY_CODE = {
    0: torch.uint8,
    1: torch.int8,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    12: torch.qint8,
    13: torch.quint8,
    14: torch.qint32,
    15: torch.bfloat16,
}
STORED_AS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}


def from_code(code: int | torch.dtype | None) -> torch.dtype | None:
    """The dtype behind an argument; an unknown number is a KeyError: this harness does not model that dtype."""
    return code if code is None or isinstance(code, torch.dtype) else BY_CODE[code]


def stored(code: int | torch.dtype | None, default: torch.dtype) -> torch.dtype:
    """The dtype of the tensor that such an argument asks for: quint8 values are kept as uint8."""
    dtype = from_code(code)
    return default if dtype is None else STORED_AS.get(dtype, dtype)
