"""Refit writes with torch operations, a few rows at a time: any kind of write, on any device, without synchronization.

CPUs use this for every write, GPUs only for writes without a kernel (int4 rows that are not whole tiles).
"""

import torch

from ascend_quant import oracle
from ascend_quant.kernels import modulo
from ascend_quant.kernels.counters import Counters, sampled
from ascend_quant.kernels.storage import WeightLayout
from ascend_quant.kernels.writes import CopyWrite, Fp8Write, PrequantizedWrite, RowWrite, SchemeWrite
from ascend_quant.oracle.fingerprint import MOST

ELEMENTS = 1 << 20  # elements that are copied at a time
READ = 1 << 16  # elements that are only read: as int64 they fit a core's private cache


def _rows(write: RowWrite, part: torch.Tensor, absmax: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    return oracle.quantize_rows(write.values(part), absmax)


def _fp8_rows(write: RowWrite, part: torch.Tensor, absmax: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    return oracle.quantize_fp8_rows(part, absmax)


CONVERSIONS = {  # by kind: (write, source rows, their absmax) -> codes, scales
    "int8": _rows,
    "int8_float32": _rows,
    "fp8": _fp8_rows,
    "fp8_tensor": _fp8_rows,
    "fp8_blocks": lambda write, part, absmax: oracle.quantize_fp8_blocks(part),
    "int4": lambda write, part, absmax: oracle.quantize_groups(part, write.group),
}


def write_in_chunks(
    write: RowWrite, source: torch.Tensor, bad: torch.Tensor, counters: Counters, receipt: bool, rows: int
) -> None:
    """Carry out one write.

    Args:
        bad: the source's counter of elements that are not finite.
        receipt: whether changed codes and the digest are counted.
        rows: number of rows quantized at a time; a multiple of a block's rows.
    """
    matrix, whole = write.matrix(source), write.whole_rows(source)
    if matrix.numel() == 0:
        return
    whole = matrix if whole is None else whole
    kind, copied = write.kind, isinstance(write, CopyWrite)
    sent_scale_N = write.sent_scale_N(source) if isinstance(write, PrequantizedWrite) else None
    tensor_absmax = _largest_of(write, source, bad, rows) if kind == "fp8_tensor" else None
    at_once = max(1, ELEMENTS // matrix.shape[1]) if copied else rows
    for start in range(0, matrix.shape[0], at_once):
        chunk = slice(start, start + at_once)
        part = matrix[chunk].to(bad.device)
        absmax = None if copied or sent_scale_N is not None else _absmax(write.values(whole[chunk].to(bad.device)))
        if sent_scale_N is not None:
            values, scale = part, sent_scale_N[chunk].to(bad.device)
        elif kind == "int8_static":
            scale = write.static_scale[chunk]
            values, lost = oracle.quantize_given(part, scale)
            counters.totals[0, 3] += lost.sum() * receipt
        else:
            largest = absmax if tensor_absmax is None else tensor_absmax.expand(len(part))
            values, scale = _converted(part, largest, write)
        if tensor_absmax is None:
            if sent_scale_N is not None:
                bad.add_(oracle.spoilt_rows(values, scale).sum())
            else:
                bad.add_(_bad(values) if absmax is None else _bad(write.values(part), absmax))
        if receipt:
            _account(values, scale, start, write, counters)
        _put(values, scale, start, write)


def _absmax(values: torch.Tensor) -> torch.Tensor:
    return values.float().abs().amax(dim=-1)


def _largest_of(write: Fp8Write, source: torch.Tensor, bad: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the amax, () float32, of the whole tensor that contains the matrix; count its non-finite elements."""
    largest = []
    for part in write.whole_tensor(source).split(rows):
        values = write.values(part.to(bad.device))
        bad.add_(_bad(values))
        largest.append(_absmax(values).max())
    return torch.stack(largest).max()


def _bad(values: torch.Tensor, absmax: torch.Tensor | None = None) -> torch.Tensor:
    """Count NaN and Inf elements; at least 1 if another part of a whole row has one, as it affects the absmax."""
    bad = (~torch.isfinite(values)).sum()
    return bad if absmax is None else torch.where(torch.isfinite(absmax).all(), bad, bad.clamp(min=1))


def _converted(
    part: torch.Tensor, absmax: torch.Tensor | None, write: RowWrite
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if isinstance(write, CopyWrite):
        return part.to(write.target.dtype), None
    if isinstance(write, SchemeWrite):
        codes, scale = oracle.quantize(part, write.scheme)
        return codes, scale.view(len(part), -1)
    return CONVERSIONS[write.kind](write, part, absmax)


def _put(values: torch.Tensor, scale: torch.Tensor | None, start: int, write: RowWrite) -> None:
    if write.layout is None:
        write.target[start : start + len(values)].copy_(values)
    else:
        write.layout.write(write.first_row + start, values)
    if scale is not None:
        per = oracle.BLOCK if write.kind == "fp8_blocks" else 1
        write.scale[start // per : start // per + len(scale)].copy_(scale)


def _account(values: torch.Tensor, scale: torch.Tensor | None, start: int, write: RowWrite, counters: Counters) -> None:
    """Count the changed codes and the digest of rows that are about to be written."""
    first = write.first_row + start
    found = sum_of_rows(values, first)
    if scale is not None:
        compared = sampled(first, len(values))
        old = _resident_rows(write, start, compared, len(values))
        counters.totals[0, 0] += (old.view(torch.int8) != values[compared].view(torch.int8)).sum()
        found += 3 * sum_of_rows(oracle.as_matrix(scale), _first_scale(write, start))
    counters.totals[0, 1:3] += modulo.halves(modulo.times(found, torch.full_like(found, write.weight)))


def _first_scale(write: RowWrite, start: int) -> int:
    """Return the index of the scale row that belongs to row `start` of the write."""
    if write.kind != "fp8_blocks":
        return write.first_row + start
    blocks = write.first_row // oracle.BLOCK if write.first_block is None else write.first_block
    return blocks + start // oracle.BLOCK


def _resident_rows(write: RowWrite, start: int, rows: slice, count: int) -> torch.Tensor:
    """Return `count` resident rows from row `start` of the write on, before they are overwritten."""
    if write.layout is None:
        return write.target[start : start + count][rows]
    first = write.first_row + start
    return write.layout[first + rows.start : first + min(rows.stop, count) : rows.step]


def sum_of_rows(values_NK: torch.Tensor, first_row: int) -> torch.Tensor:
    """Return `oracle.digest` of rows as int64 ()."""
    return _weighted(_sums(values_NK, 0), first_row)


def sum_of(tensor: torch.Tensor | WeightLayout, first_row: int = 0, first_column: int = 0) -> torch.Tensor:
    """Compute `oracle.digest` of a whole tensor as int64 (), a few rows at a time."""
    matrix = oracle.as_matrix(tensor) if isinstance(tensor, torch.Tensor) else tensor
    rows, columns = matrix.shape
    step = max(1, READ // max(1, columns))
    starts = range(0, rows if columns else 0, step)
    sums = [_sums(matrix[start : start + step], first_column) for start in starts]
    none = torch.zeros(0, dtype=torch.int64, device=matrix[:0].device)
    return _weighted(torch.cat([none, *sums]), first_row)


def _weighted(sum_N: torch.Tensor, first_row: int) -> torch.Tensor:
    """Return int64 (): the rows' sums weighted by row."""
    weight_N = oracle.weights_of_rows(torch.arange(first_row, first_row + len(sum_N), device=sum_N.device))
    return modulo.joined(modulo.halves(modulo.times(sum_N, weight_N)))


def _sums(values_NK: torch.Tensor, first_column: int) -> torch.Tensor:
    """Return int64 (N) in [0, PRIME): each row's weighted sum of bytes."""
    pairs_NJ, first = pairs_of(values_NK, first_column)
    total_N = torch.zeros(len(pairs_NJ), dtype=torch.int64, device=pairs_NJ.device)
    for start in range(0, pairs_NJ.shape[1], MOST):
        part_NJ = pairs_NJ[:, start : start + MOST]
        weight_J = oracle.column_weights(first + start, part_NJ.shape[1]).to(part_NJ.device)
        product_NJ = (part_NJ ^ 0x80).to(torch.int64).mul_(weight_J)  # CUDA has no int64 matmul
        sum_N = product_NJ.sum(1) - 0x80 * weight_J.sum()
        total_N = (total_N + sum_N % oracle.PRIME) % oracle.PRIME
    return total_N


def pairs_of(values_NK: torch.Tensor, first_column: int) -> tuple[torch.Tensor, int]:
    """Return rows' bytes in pairs, as int16 (N, J) padded with zeros, and the index of the first pair."""
    if values_NK.element_size() == 2:
        return values_NK.view(torch.int16), first_column
    bytes_NB, first = oracle.as_bytes(values_NK), first_column * values_NK.element_size()
    before, behind = first % 2, (first + bytes_NB.shape[1]) % 2
    if before or behind or bytes_NB.storage_offset() % 2 or bytes_NB.stride(0) % 2:
        filled = bytes_NB.new_zeros(len(bytes_NB), before + bytes_NB.shape[1] + behind)
        filled[:, before : before + bytes_NB.shape[1]] = bytes_NB
        bytes_NB = filled
    return bytes_NB.view(torch.int16), first // 2
