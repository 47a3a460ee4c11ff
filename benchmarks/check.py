"""Whether the engine holds the oracle's bytes: computed from the tensors that were sent, one at a time."""

from collections.abc import Mapping, Sequence

import torch

from ascend_quant import oracle
from ascend_quant.kernels.moves import Place
from ascend_quant.schemes import SCHEMES, Scheme
from benchmarks.layout import Piece


def differing(
    parameters: Mapping[str, torch.Tensor | Place],
    sent: Mapping[str, torch.Tensor],
    layout: Mapping[str, Sequence[Piece]],
    scheme: Scheme = SCHEMES["int8"],
) -> list[str]:
    """What is not as it should be, in words.

    Args:
        parameters: the engine's, by name; of quantized ones the scales too.
        sent: the trainer's tensors, by name.
        layout: the pieces of each parameter to check (see `layout.layout`); whole tensors but for scales by rows.
    """
    faults = []
    for name, pieces in layout.items():
        held, scale = parameters.get(name), parameters.get(f"{name}_scale")
        if held is None:
            faults.append(f"the engine has no parameter {name}")
            continue
        if scheme.shares == "block" and scale is not None:
            faults += _block_faults(name, held, scale, pieces, sent)
            continue
        if isinstance(held, torch.Tensor):
            held = held.reshape(-1, held.shape[-1] if held.dim() > 1 else 1)
        faults += _faults(name, held, scale, pieces, sent, scheme)
    return faults


def _faults(name: str, held, scale, pieces: Sequence[Piece], sent: Mapping[str, torch.Tensor], scheme: Scheme):
    faults, first = [], 0
    scale = None if scale is None else scale.reshape(-1, scale.shape[-1])
    for piece in pieces:
        codes, expected = _expected(sent[piece.name], piece, None if scale is None else scheme)
        own = slice(first, first + len(codes))
        if not (same(codes, held[own]) and (scale is None or same(expected, scale[own]))):
            faults.append(f"{name}: the rows of {piece.name} are not the oracle's")
        first = own.stop
    if first != held.shape[0]:
        faults.append(f"{name}: {held.shape[0]} rows where the tensors sent make {first}")
    return faults


def _block_faults(name: str, held, scale, pieces: Sequence[Piece], sent: Mapping[str, torch.Tensor]) -> list[str]:
    """Blocks are those of the engine's matrix, whatever it is put together from."""
    matrix = torch.cat([sent[piece.name] for piece in pieces]).view(held.shape)
    codes, expected = oracle.quantize_fp8_blocks(matrix)
    return [] if same(codes, held) and same(expected, scale) else [f"{name}: not the oracle's blocks"]


def _expected(tensor: torch.Tensor, piece: Piece, scheme: Scheme | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What becomes of a piece: codes and scales as rows, or the values themselves."""
    if scheme is None:
        return (tensor if tensor.dim() > 1 else tensor.unsqueeze(-1))[piece.rows, piece.columns], None
    codes, scale = oracle.quantize(tensor, scheme)
    if scheme.shares == "tensor":
        scale = scale.expand(len(codes))
    if scheme.shares in ("row", "tensor"):
        return codes[piece.rows, piece.columns], scale[piece.rows].unsqueeze(-1)
    return codes, scale  # of pieces that are whole tensors: one rank's


def same(expected: torch.Tensor, held: torch.Tensor) -> bool:
    """Whether two tensors are the same, bit for bit."""
    if expected.dtype != held.dtype or expected.shape != held.shape:
        return False
    return torch.equal(oracle.as_integers(expected), oracle.as_integers(held))
