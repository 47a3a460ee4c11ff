"""Quantization schemes by name. Each file has one family of schemes and registers them.

scheme.py       the dataclass that describes a scheme, and constants
definition.py   base class of a family's definition
registry.py     registered schemes; names of KV cache dtypes
arithmetic.py   arithmetic shared by the families
layer_names.py  layers that are quantized or ignored, by the names of checkpoints, trainers and engines
tensors.py      dtypes of the weights that are quantized; a layer's experts, stacked or one by one
int8.py, fp8.py, fp8_block.py, int4.py, bf16.py

The launcher reads names and rows on machines without torch, so importing this package does not import torch: only
arithmetic.py and tensors.py do.
How to add a scheme: docs/extend.md.
"""

from ascend_quant.schemes import int8, fp8, fp8_block, int4, bf16  # noqa: F401, I001  in the order of tables
from ascend_quant.schemes.definition import Definition, Scales, Stored
from ascend_quant.schemes.registry import (
    ALIASES,
    SCHEMES,
    DuplicateScheme,
    UnknownScheme,
    UnregisteredScheme,
    definition_of,
    get_scheme,
    register,
)
from ascend_quant.schemes.scheme import Scheme

__all__ = [
    "ALIASES",
    "SCHEMES",
    "Definition",
    "DuplicateScheme",
    "Scales",
    "Scheme",
    "Stored",
    "UnknownScheme",
    "UnregisteredScheme",
    "definition_of",
    "get_scheme",
    "register",
]
