"""The digest that a refit's receipt must have: the oracle on a checkpoint's values, nothing of the engine's.

The engine says only which checkpoint tensors lie in which of its parameters, in which order (worker.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ascend_quant import oracle
from ascend_quant.schemes import Scheme

Read = Callable[[str], torch.Tensor]


@dataclass(frozen=True)
class Parameter:
    """One of the engine's parameters.

    Attributes:
        parts: checkpoint names, in the order of its rows.
        weight: its factor in the digest of all.
        quantized: whether it is held as codes and scales.
        dtype: torch's name of the engine's own, where it is not quantized.
    """

    name: str
    parts: Sequence[str]
    weight: int
    quantized: bool
    dtype: str


def digest(parameters: Sequence[Parameter], read: Read, scheme: Scheme) -> str:
    """16 hex digits, of one rank that holds everything.

    Args:
        read: gives a tensor of the checkpoint by its name.
        scheme: one whose scales are shared by rows.
    """
    found, weights = [], []
    for one in parameters:
        values = torch.cat([oracle.as_matrix(read(part)) for part in one.parts])
        if one.quantized:
            codes, scale = oracle.quantize(values, scheme)
            found += [oracle.digest(codes), oracle.digest(scale)]
            weights += [one.weight, 3 * one.weight]
        else:
            found.append(oracle.digest(values.to(getattr(torch, one.dtype))))
            weights.append(one.weight)
    return f"{oracle.add_digests(*found, weights=weights):016x}"
