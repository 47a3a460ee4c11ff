"""NPU kernels: torch_npu's own operations on many matrices at a time, with no host synchronisation.

Rows of equal length are put side by side, quantized together without a division (reciprocals.py), digested on the
matrix unit (byte_digest.py), and copied to their places. Serving: npu_linear.py and npu_experts.py.

What a profile has multiplied is no BF16 number any more and is divided, in float32: those codes and scales equal the
CPU's bytes only where the device's Div is IEEE's, which tests/npu_smoke measures.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from ascend_quant import oracle
from ascend_quant.kernels import byte_digest, moves, reciprocals
from ascend_quant.kernels.fake_quantize import fake_quantize  # noqa: F401  offered here too
from ascend_quant.kernels.float32_head import float32_product  # noqa: F401  offered here too
from ascend_quant.kernels.moves import Job, Move, Place, sampled
from ascend_quant.kernels.npu_experts import experts, plain_experts  # noqa: F401
from ascend_quant.kernels.npu_linear import PRODUCT, matmul
from ascend_quant.kernels.storage import Serving

READS_ARE_FREE = False  # reading a counter waits for the device
SERVING = {"int8": Serving(matmul, experts, PRODUCT)}

ELEMENTS = 1 << 23  # that are taken together; each needs about 20 bytes of work space
MOST_ROWS = 1 << 20  # of a table of row digits, 16 bytes each


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

    def resident_rows(self, rows: slice) -> torch.Tensor:
        """Some of the rows as they are in the resident tensor, counted from this piece's first."""
        if self.move.place is None:
            return self.move.target_NK[self.rows][rows]
        first = self.first_row
        return self.move.place[first + rows.start : first + min(rows.stop, self.count) : rows.step]


class Counters(moves.Counters):
    """The digest's sums are kept apart for each resident tensor and put together on the host.

    Attributes:
        sums: by the weight of the tensor, see `byte_digest.sums`.
    """

    def __init__(self, device: torch.device):
        super().__init__(device)
        self.sums: dict[int, torch.Tensor] = {}

    def read(self) -> tuple[int, int, dict[int, int]]:
        changed, _, bad = super().read()
        digests = _digests_of(list(self.sums.values()))
        return changed, oracle.add_digests(*digests, weights=list(self.sums)), bad


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


def prepare(device: torch.device, writes: Iterable, digested: Iterable) -> None:
    """Nothing is compiled here: the operations are torch_npu's own."""


def digests(
    tensors: Sequence[torch.Tensor | Place], first_rows: Sequence[int] = (), first_columns: Sequence[int] = ()
) -> torch.Tensor:
    """`oracle.digest` of each tensor as int64 (its 64 bits), on their device; waits for it."""
    found = []
    for i, tensor in enumerate(tensors):
        matrix = oracle.as_integers(oracle.as_matrix(tensor)) if isinstance(tensor, torch.Tensor) else tensor
        rows, columns = matrix.shape
        total = torch.zeros(byte_digest.SHAPE, dtype=torch.int64, device=matrix[:0].device)
        step = max(1, ELEMENTS // max(1, columns))
        for start in range(0, rows if columns else 0, step):
            part = matrix[start : start + step]
            first = (first_rows[i] if first_rows else 0) + start
            digits = _row_digits(np.arange(first, first + len(part)), part.device)
            total += byte_digest.sums(part, None, digits, _product, first_columns[i] if first_columns else 0)
        found.append(total)
    signed = [(digest + 2**63) % 2**64 - 2**63 for digest in _digests_of(found)]
    return torch.tensor(signed, dtype=torch.int64, device=found[0].device if found else None)


def _digests_of(sums: list[torch.Tensor]) -> list[int]:
    """What the sums put together to, in one copy to the host."""
    found = torch.stack(sums).cpu() if sums else []
    return [low + (high << 32) for low, high in map(byte_digest.lanes, found)]


def _together(batch: Sequence[Job]) -> Iterator[list[Piece]]:
    """Rows of one resident tensor that are treated alike, as many at a time as the work space allows."""
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
    if move.kind.startswith("fp8"):
        raise ValueError("Atlas A2 and A3 have no fp8: choose the scheme int8")
    if move.kind == "int4":
        raise ValueError("int4 rollouts are not served on NPUs by this version: choose the scheme int8")
    whole = 0 if move.whole is None else move.whole[1]
    kind = move.scale is None, move.exact, move.given_N is None
    return move.weight, source.dtype, target.dtype, target.shape[1], whole, kind, source.device


def _write(pieces: list[Piece], counters: Counters, receipt: bool) -> None:
    move = pieces[0].move
    device = (move.target_NK if move.place is None else move.place.tensor).device
    x_NK = torch.cat([piece.move.matrix(piece.source)[piece.rows] for piece in pieces]).to(device)
    if x_NK.numel() == 0:
        return
    if move.scale is None:
        values_NK, scale_N = x_NK.to(move.target_NK.dtype), None
        bad_N = (~torch.isfinite(values_NK)).sum(1)
    elif move.given_N is not None:
        scale_N = torch.cat([piece.move.given_N[piece.rows] for piece in pieces])
        values_NK, lost_NK = oracle.quantize_given(x_NK, scale_N)
        bad_N = (~torch.isfinite(x_NK)).sum(1)
        counters.totals[0, 3] += lost_NK.sum() * receipt
    else:
        values_NK, scale_N, bad_N = _quantized(move.values(x_NK), _absmax_of_whole(pieces, device))
    _count_bad(bad_N, pieces, counters)
    if receipt:
        _account(values_NK, scale_N, pieces, counters)
    start = 0
    for piece in pieces:
        part = slice(start, start + piece.count)
        if piece.move.place is None:
            piece.move.target_NK[piece.rows].copy_(values_NK[part])
        else:
            piece.move.place.write(piece.first_row, values_NK[part])
        if scale_N is not None:
            piece.move.scale[piece.rows].copy_(scale_N[part])
        start += piece.count


def _absmax_of_whole(pieces: list[Piece], device: torch.device) -> torch.Tensor | None:
    if pieces[0].move.whole is None:
        return None
    whole_NL = torch.cat([piece.move.whole_rows(piece.source)[piece.rows] for piece in pieces]).to(device)
    return pieces[0].move.values(whole_NL).abs().amax(-1)


def _quantized(x_NK: torch.Tensor, absmax_N: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales, and how many elements are not finite: at least 1 if one elsewhere in the whole rows is not."""
    bad_N = (~torch.isfinite(x_NK)).sum(1)
    if absmax_N is None:
        absmax_N = x_NK.abs().amax(-1)
    bad_N = torch.where(torch.isfinite(absmax_N), bad_N, bad_N.clamp(min=1))
    if x_NK.dtype == torch.float32:
        return *oracle.quantize_rows(x_NK, absmax_N), bad_N
    scale_N, factor_N = reciprocals.scale_and_factor(absmax_N)
    return reciprocals.codes_of(x_NK, factor_N), scale_N, bad_N


def _count_bad(bad_N: torch.Tensor, pieces: list[Piece], counters: Counters) -> None:
    """Add the rows' bad elements to the counters of their sources."""
    counts = {piece.count for piece in pieces}
    if len(counts) == 1:
        bad_P = bad_N.view(len(pieces), -1).sum(1)
    else:
        bad_P = torch.stack([part.sum() for part in bad_N.split([piece.count for piece in pieces])])
    slots = np.array([piece.slot for piece in pieces])
    for number in np.unique(slots // Counters.BLOCK):
        here = np.flatnonzero(slots // Counters.BLOCK == number)
        indices = torch.from_numpy(np.stack([here, slots[here] % Counters.BLOCK])).to(bad_N.device)
        counters.bad[number].index_add_(0, indices[1], bad_P[indices[0]])


def _account(values_NK: torch.Tensor, scale_N: torch.Tensor | None, pieces: list[Piece], counters: Counters) -> None:
    """Count the changed codes and the digest of rows that are about to be written."""
    rows = np.concatenate([np.arange(piece.first_row, piece.first_row + piece.count) for piece in pieces])
    found = byte_digest.sums(values_NK, scale_N, _row_digits(rows, values_NK.device), _product)
    weight = pieces[0].move.weight
    counters.sums[weight] = counters.sums[weight] + found if weight in counters.sums else found
    if scale_N is not None:
        counters.totals[0, 0] += _changed(values_NK, pieces)


def _changed(codes_NK: torch.Tensor, pieces: list[Piece]) -> torch.Tensor:
    """How many codes of the sampled rows differ from the resident ones."""
    old, new, start = [], [], 0
    for piece in pieces:
        compared = sampled(piece.first_row, piece.count)
        if compared.start < piece.count:
            old.append(piece.resident_rows(compared))
            new.append(codes_NK[start : start + piece.count][compared])
        start += piece.count
    if not old:
        return torch.zeros((), dtype=torch.int64, device=codes_NK.device)
    return (torch.cat(old) != torch.cat(new)).sum()


def _row_digits(rows: np.ndarray, device: torch.device) -> torch.Tensor:
    """See `byte_digest.row_digits`; of ordinary rows from a table on the device."""
    last = int(rows.max())
    if last >= MOST_ROWS:
        return byte_digest.row_digits(torch.from_numpy(rows)).to(device)
    table = _row_table(1 << last.bit_length(), device)
    if (np.diff(rows) == 1).all():
        return table[int(rows[0]) : last + 1]
    return table[torch.from_numpy(rows).to(device)]


@cache
def _row_table(count: int, device: torch.device) -> torch.Tensor:
    return byte_digest.row_digits(torch.arange(count, device="cpu")).to(device)


def _product(x_NB: torch.Tensor, w_BJ: torch.Tensor) -> torch.Tensor:
    """The exact int32 product of int8 matrices."""
    if x_NB.device.type != "npu":  # these kernels' arithmetic, tried without an NPU
        return (x_NB.double() @ w_BJ.double()).to(torch.int32)
    import torch_npu

    one = torch.ones(1, dtype=torch.float32, device=x_NB.device)
    return torch_npu.npu_quant_matmul(x_NB, w_BJ, one, output_dtype=torch.int32)
