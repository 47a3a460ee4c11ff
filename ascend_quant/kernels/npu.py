"""NPU kernels: torch_npu's own operations on many matrices at a time, with no host synchronisation.

Rows of equal length are put side by side, quantized together without a division (reciprocals.py), digested on the
matrix unit (byte_digest.py), and copied to their places, whatever format these have (npu_formats.py).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ascend_quant import oracle
from ascend_quant.kernels import byte_digest, reciprocals
from ascend_quant.kernels.moves import SAMPLE, Counters, Job, Move, sampled

READS_ARE_FREE = False  # reading a counter waits for the device

ELEMENTS = 1 << 23  # that are taken together; each needs about 20 bytes of work space


class Piece(NamedTuple):
    """Some rows of a move, and its source."""

    move: Move
    source: torch.Tensor
    slot: int
    rows: slice

    @property
    def count(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def first_row(self) -> int:
        """In the whole resident tensor."""
        return self.move.first_row + self.rows.start


def write(batch: Sequence[Job], counters: Counters, receipt: bool = True) -> None:
    """Carry out a batch of moves; asynchronous.

    Args:
        batch: the sources must stay as they are until the current stream has passed this point.
        receipt: whether changed codes and the digest are counted; non-finite elements always are.

    Raises:
        ValueError: fp8 codes, which Atlas A2 and A3 do not have.
    """
    for pieces in _together(batch):
        _write(pieces, counters, receipt)


def digests(
    tensors: Sequence[torch.Tensor], first_rows: Sequence[int] = (), first_columns: Sequence[int] = ()
) -> torch.Tensor:
    """`oracle.digest` of each tensor as int64 (its 64 bits), on their device, a few rows at a time."""
    device = tensors[0].device if tensors else None
    found = torch.zeros(len(tensors), 2, dtype=torch.int64, device=device)
    for i, tensor in enumerate(tensors):
        matrix = oracle.as_matrix(tensor)
        step = max(1, ELEMENTS // max(1, matrix.shape[1]))
        for start in range(0, matrix.shape[0] if matrix.numel() else 0, step):
            part = matrix[start : start + step]
            sum_N = byte_digest.row_sums(part, first_columns[i] if first_columns else 0, _product)
            first = (first_rows[i] if first_rows else 0) + start
            rows = torch.arange(first, first + len(part), dtype=torch.int64, device=device)
            found[i] += _lanes(sum_N, rows).sum(1) % oracle.LANE
    return found[:, 0] % oracle.LANE + (found[:, 1] << 32)


def _together(batch: Sequence[Job]) -> Iterator[list[Piece]]:
    """Rows that differ only in where they come from and go to, as many at a time as the work space allows."""
    groups: dict[tuple, list[Piece]] = {}
    sizes: dict[tuple, int] = {}
    for job in batch:
        for move, source, slot in job.each():
            key, length = _kind(move, source), max(1, move.target_NK.shape[1], move.whole[1] if move.whole else 0)
            step = max(1, ELEMENTS // length)
            for start in range(0, move.rows, step):
                piece = Piece(move, source, slot, slice(start, min(start + step, move.rows)))
                if sizes.get(key, 0) + piece.count > step:
                    yield groups.pop(key)
                    sizes[key] = 0
                groups.setdefault(key, []).append(piece)
                sizes[key] = sizes.get(key, 0) + piece.count
    yield from groups.values()


def _kind(move: Move, source: torch.Tensor) -> tuple:
    target = move.target_NK
    if target.dtype == torch.float8_e4m3fn:
        raise ValueError("Atlas A2 and A3 have no fp8: choose the scheme int8")
    whole = 0 if move.whole is None else move.whole[1]
    return source.dtype, target.dtype, target.shape[1], whole, move.scale is None, source.device


def _write(pieces: list[Piece], counters: Counters, receipt: bool) -> None:
    device = pieces[0].move.target_NK.device
    x_NK = torch.cat([piece.move.matrix(piece.source)[piece.rows] for piece in pieces]).to(device)
    if x_NK.numel() == 0:
        return
    table = _table(pieces, device)
    if pieces[0].move.scale is None:
        values_NK, scale_N = x_NK.to(pieces[0].move.target_NK.dtype), None
        bad_N = (~torch.isfinite(values_NK)).sum(1)
    else:
        values_NK, scale_N, bad_N = _quantized(x_NK.to(torch.bfloat16), _absmax_of_whole(pieces, device))
    _count_bad(bad_N, pieces, counters, table)
    if receipt:
        _account(values_NK, scale_N, pieces, counters, table)
    start = 0
    for piece in pieces:
        part = slice(start, start + piece.count)
        piece.move.target_NK[piece.rows].copy_(values_NK[part])
        if scale_N is not None:
            piece.move.scale[piece.rows].copy_(scale_N[part])
        start += piece.count


def _absmax_of_whole(pieces: list[Piece], device: torch.device) -> torch.Tensor | None:
    if pieces[0].move.whole is None:
        return None
    whole_NL = torch.cat([piece.move.whole_rows(piece.source)[piece.rows] for piece in pieces]).to(device)
    return whole_NL.to(torch.bfloat16).abs().amax(-1).float()


def _quantized(
    rounded_NK: torch.Tensor, absmax_N: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales, and how many elements are not finite: at least 1 if one elsewhere in the whole rows is not."""
    bad_N = (~torch.isfinite(rounded_NK)).sum(1)
    if absmax_N is None:
        absmax_N = rounded_NK.abs().amax(-1).float()
    finite_N = torch.isfinite(absmax_N)
    scale_N, factor_N = reciprocals.scale_and_factor(absmax_N)
    bad_N = torch.where(finite_N, bad_N, bad_N.clamp(min=1))
    return reciprocals.codes_of(rounded_NK, factor_N), torch.where(finite_N, scale_N, absmax_N), bad_N


def _table(pieces: list[Piece], device: torch.device) -> torch.Tensor:
    """int64 (3, N): each row's number in its resident tensor, the tensor's weight, its source's slot."""
    counts = [piece.count for piece in pieces]
    rows = np.concatenate([np.arange(piece.first_row, piece.first_row + piece.count) for piece in pieces])
    weights = np.repeat([piece.move.weight for piece in pieces], counts)
    slots = np.repeat([piece.slot for piece in pieces], counts)
    return torch.from_numpy(np.stack([rows, weights, slots])).to(device, non_blocking=True)


def _count_bad(bad_N: torch.Tensor, pieces: list[Piece], counters: Counters, table: torch.Tensor) -> None:
    for number in {piece.slot // Counters.BLOCK for piece in pieces}:
        slot = table[2] - number * Counters.BLOCK
        here = (slot >= 0) & (slot < Counters.BLOCK)
        counters.bad[number].index_add_(0, torch.where(here, slot, 0), torch.where(here, bad_N, 0))


def _account(
    values_NK: torch.Tensor,
    scale_N: torch.Tensor | None,
    pieces: list[Piece],
    counters: Counters,
    table: torch.Tensor,
) -> None:
    """Count the changed codes and the digest of rows that are about to be written."""
    sum_N = byte_digest.row_sums(values_NK, 0, _product)
    if scale_N is not None:
        counters.totals[0, 0] += _changed(values_NK, pieces)
        sum_N += 3 * scale_N.view(torch.int32).to(torch.int64)
    rows, weight_N, _ = table
    counters.totals[0, 1:] += (_lanes(sum_N, rows) * weight_N % oracle.LANE).sum(1)


def _changed(codes_NK: torch.Tensor, pieces: list[Piece]) -> torch.Tensor:
    """How many codes of the sampled rows differ from the resident ones."""
    old, new, start = [], [], 0
    for piece in pieces:
        compared = sampled(piece.first_row, piece.count)
        if compared.start < piece.count:
            old.append(piece.move.target_NK[piece.rows][compared])
            new.append(codes_NK[start : start + piece.count][compared])
        start += piece.count
    if not old:
        return torch.zeros((), dtype=torch.int64, device=codes_NK.device)
    return (torch.cat(old) != torch.cat(new)).sum()


def _lanes(sum_N: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """int64 (2, N) below 2**32: the rows' parts of both sums of `oracle.digest`."""
    sum_N = sum_N % oracle.LANE
    return torch.stack([sum_N * oracle.weights_of_rows(rows, seed) % oracle.LANE for seed in oracle.ROW_SEEDS])


def _product(x_NB: torch.Tensor, w_BJ: torch.Tensor) -> torch.Tensor:
    """The exact int32 product of int8 matrices."""
    if x_NB.device.type != "npu":  # these kernels' arithmetic, tried without an NPU
        return (x_NB.double() @ w_BJ.double()).to(torch.int32)
    import torch_npu

    one = torch.ones(1, dtype=torch.float32, device=x_NB.device)
    return torch_npu.npu_quant_matmul(x_NB, w_BJ, one, output_dtype=torch.int32)
