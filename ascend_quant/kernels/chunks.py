"""Moves carried out by torch operations, a few rows at a time: any kind, on any device, with nothing to wait for.

What the CPU does with every move, and a GPU with those that its own kernels do not have (int4).
"""

import torch

from ascend_quant import oracle
from ascend_quant.kernels.moves import Counters, Move, Place, sampled

ELEMENTS = 1 << 20  # of what is only copied or read


def write_in_chunks(
    move: Move, source: torch.Tensor, bad: torch.Tensor, counters: Counters, receipt: bool, rows: int
) -> None:
    """Carry out one move.

    Args:
        bad: the source's counter of elements that are not finite.
        receipt: whether changed codes and the digest are counted.
        rows: how many are quantized at a time; a multiple of a block's.
    """
    matrix, whole = move.matrix(source), move.whole_rows(source)
    if matrix.numel() == 0:
        return
    whole = matrix if whole is None else whole
    tensor_absmax = None if move.among is None else _largest_of(move, source, bad, rows)
    at_once = rows if move.scale is not None else max(1, ELEMENTS // matrix.shape[1])
    for start in range(0, matrix.shape[0], at_once):
        chunk = slice(start, start + at_once)
        part = matrix[chunk].to(bad.device)
        absmax = None if move.scale is None else _absmax(move.values(whole[chunk].to(bad.device)))
        if move.given_N is not None:
            scale = move.given_N[chunk]
            values, lost = oracle.quantize_given(part, scale)
            counters.totals[0, 3] += lost.sum() * receipt
        else:
            values, scale = _converted(part, absmax if tensor_absmax is None else tensor_absmax.expand(len(part)), move)
        if tensor_absmax is None:
            bad.add_(_bad(values) if absmax is None else _bad(move.values(part), absmax))
        if receipt:
            _account(values, scale, start, move, counters)
        _put(values, scale, start, move)


def _absmax(values: torch.Tensor) -> torch.Tensor:
    return values.float().abs().amax(dim=-1)


def _largest_of(move: Move, source: torch.Tensor, bad: torch.Tensor, rows: int) -> torch.Tensor:
    """() float32: of the tensor that the matrix is a part of, whose bad elements are counted."""
    largest = []
    for part in move.whole_tensor(source).split(rows):
        values = move.values(part.to(bad.device))
        bad.add_(_bad(values))
        largest.append(_absmax(values).max())
    return torch.stack(largest).max()


def _bad(values: torch.Tensor, absmax: torch.Tensor | None = None) -> torch.Tensor:
    """How many elements are not finite; at least 1 if one is elsewhere in the whole rows, which spoils their absmax."""
    bad = (~torch.isfinite(values)).sum()
    return bad if absmax is None else torch.where(torch.isfinite(absmax).all(), bad, bad.clamp(min=1))


def _converted(part: torch.Tensor, absmax: torch.Tensor | None, move: Move) -> tuple[torch.Tensor, torch.Tensor | None]:
    kind = move.kind
    if kind == "copy":
        return part.to(move.target_NK.dtype), None
    if kind == "fp8_blocks":
        return oracle.quantize_fp8_blocks(part)
    if kind == "int4":
        return oracle.quantize_groups(part, move.group)
    if kind in ("fp8", "fp8_tensor"):
        return oracle.quantize_fp8_rows(part, absmax)
    return oracle.quantize_rows(move.values(part), absmax)


def _put(values: torch.Tensor, scale: torch.Tensor | None, start: int, move: Move) -> None:
    if move.place is None:
        move.target_NK[start : start + len(values)].copy_(values)
    else:
        move.place.write(move.first_row + start, values)
    if scale is not None:
        per = oracle.BLOCK if move.kind == "fp8_blocks" else 1
        move.scale[start // per : start // per + len(scale)].copy_(scale)


def _account(values: torch.Tensor, scale: torch.Tensor | None, start: int, move: Move, counters: Counters) -> None:
    """Count the changed codes and the digest of rows that are about to be written."""
    first = move.first_row + start
    low_high = sums_of_rows(values, first)
    if scale is not None:
        compared = sampled(first, len(values))
        old = _resident_rows(move, start, compared, len(values))
        counters.totals[0, 0] += (old.view(torch.int8) != values[compared].view(torch.int8)).sum()
        low_high += 3 * sums_of_rows(oracle.as_matrix(scale), _first_scale(move, start))
    counters.totals[0, 1:3] += low_high * move.weight % oracle.LANE


def _first_scale(move: Move, start: int) -> int:
    """Which row of all scales belongs to row `start` of the move."""
    if move.kind != "fp8_blocks":
        return move.first_row + start
    blocks = move.first_row // oracle.BLOCK if move.first_block is None else move.first_block
    return blocks + start // oracle.BLOCK


def _resident_rows(move: Move, start: int, rows: slice, count: int) -> torch.Tensor:
    """Some of `count` rows from row `start` of the move on, as they are before they are written."""
    if move.place is None:
        return move.target_NK[start : start + count][rows]
    first = move.first_row + start
    return move.place[first + rows.start : first + min(rows.stop, count) : rows.step]


def sums_of_rows(values_NK: torch.Tensor, first_row: int, first_column: int = 0) -> torch.Tensor:
    """Both sums of `oracle.digest`, int64 in [0, 2**32)."""
    bits_NK = oracle.as_integers(values_NK).to(torch.int64)
    sum_N = (bits_NK * oracle.column_weights(first_column, bits_NK.shape[1], bits_NK.device)).sum(1) % oracle.LANE
    rows = (oracle.row_weights(first_row, len(sum_N), sum_N.device, seed) for seed in oracle.ROW_SEEDS)
    return torch.stack([(sum_N * row_N % oracle.LANE).sum() for row_N in rows]) % oracle.LANE


def sums_of(tensor: torch.Tensor | Place, first_row: int = 0, first_column: int = 0) -> torch.Tensor:
    """The same of a whole tensor, a few rows at a time."""
    matrix = oracle.as_matrix(tensor) if isinstance(tensor, torch.Tensor) else tensor
    rows, columns = matrix.shape
    step = max(1, ELEMENTS // max(1, columns))
    parts = (
        sums_of_rows(matrix[start : start + step], first_row + start, first_column) for start in range(0, rows, step)
    )
    total = sum(parts, torch.zeros(2, dtype=torch.int64, device=matrix[:0].device))
    return total % oracle.LANE
