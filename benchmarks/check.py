"""Whether the engine holds the oracle's bytes: computed from the tensors that were sent, a few rows at a time."""

from collections.abc import Mapping, Sequence

import torch

from ascend_quant import oracle
from benchmarks.layout import Piece

ROWS = 2048


def differing(
    parameters: Mapping[str, torch.Tensor], sent: Mapping[str, torch.Tensor], layout: Mapping[str, Sequence[Piece]]
) -> list[str]:
    """What is not as it should be, in words.

    Args:
        parameters: the engine's, by name.
        sent: the trainer's tensors, by name.
        layout: the pieces of each parameter to check (see `layout.layout`).
    """
    faults = []
    for name, pieces in layout.items():
        held, scale = parameters.get(name), parameters.get(f"{name}_scale")
        if held is None:
            faults.append(f"the engine has no parameter {name}")
            continue
        rows = held.reshape(-1, held.shape[-1] if held.dim() > 1 else 1)
        faults += _faults(name, rows, None if scale is None else scale.reshape(-1), pieces, sent)
    return faults


def _faults(name: str, held, scale, pieces: Sequence[Piece], sent: Mapping[str, torch.Tensor]) -> list[str]:
    faults, first = [], 0
    for piece in pieces:
        source = sent[piece.name][piece.rows]
        source = source if source.dim() > 1 else source.unsqueeze(-1)
        own = slice(first, first + len(source))
        if not same(source, held[own], None if scale is None else scale[own], piece.columns):
            faults.append(f"{name}: the rows of {piece.name} are not the oracle's")
        first = own.stop
    if first != len(held):
        faults.append(f"{name}: {len(held)} rows where the tensors sent make {first}")
    return faults


def same(source: torch.Tensor, held: torch.Tensor, scale: torch.Tensor | None, columns: slice = slice(None)) -> bool:
    """Whether `held` (and `scale`, if it is quantized) is what becomes of the rows of `source`, bit for bit."""
    if len(held) != len(source):
        return False
    for start in range(0, len(source), ROWS):
        part = slice(start, start + ROWS)
        expected = source[part]
        if scale is not None:
            expected, expected_scale = oracle.quantize_weight(expected)
            if not torch.equal(expected_scale, scale[part]):
                return False
        if expected.dtype != held.dtype or not torch.equal(expected[:, columns], held[part]):
            return False
    return True
