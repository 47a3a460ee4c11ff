"""A refit on NPUs: torch_npu's operators on many tensors at a time, without synchronization.

A chunk of rows of equal length (pieces.py) is quantized without a division (codes.py, reciprocals.py), digested on the
matrix unit (byte_digest.py, digests.py), and copied to its destinations. Counters stay on the device until the refit
closes.

Weights that a profile has smoothed are no longer BF16 numbers, and are divided in float32. Their codes and scales equal
the CPU's only if the device's Div conforms to IEEE 754, which `smoke` measures (operators.rounding).
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from ascend_quant import oracle
from ascend_quant.kernels import byte_digest, reciprocals
from ascend_quant.kernels.npu.refit import codes as npu_codes
from ascend_quant.kernels.npu.refit.digests import product, row_digits
from ascend_quant.kernels.npu.refit.pieces import Piece, Run, chunks_of, rows_of, runs_of
from ascend_quant.kernels.registry import check_kind
from ascend_quant.kernels.writes import CopyWrite, Job, PrequantizedWrite, RowWrite, SchemeWrite, scales_in

READS_ARE_FREE = False  # reading a counter waits for the device
KINDS = ("copy", "int8", "int8_float32", "int8_static", "int8_prequantized")  # kinds of writes that are supported

ELEMENTS = 1 << 23  # elements at a time, for kinds that need much work space and in a first load


class Counters:
    """Counters that are updated during one refit; they stay on the device and are read once.

    Args:
        sparing: whether to use little work space, as in a first load, whose peak memory an engine may reserve for good.

    Attributes:
        slots: number of source tensors.
        clamped: number of clamped codes at the last `read`.
        sums: digest sums: (weight of the resident tensor, int32 (BYTES, WIDTH)).
        changed, lost: counts, int64 ().
        absmax: (absmax of rows (N), and the (slot, rows) of the sources in the same order).
    """

    NONFINITE = "rows"  # the unit of `read`'s non-finite counts

    def __init__(self, device: torch.device, sparing: bool = False):
        self.sparing = sparing
        self.slots = self.clamped = 0
        self.sums: list[tuple[int, torch.Tensor]] = []
        self.changed, self.lost = ([torch.zeros((), dtype=torch.int64, device=device)] for _ in range(2))
        self.absmax: list[tuple[torch.Tensor, list[tuple[int, int]]]] = []

    def new_slots(self, count: int = 1) -> int:
        """Reserve `count` consecutive slots for source tensors; return the first."""
        self.slots += count
        return self.slots - count

    def read(self) -> tuple[int, int, dict[int, int]]:
        """Return changed codes, the digest, and rows with NaN or Inf by slot; synchronizes once if all are finite."""
        spoilt = self._spoilt()
        counts = [torch.stack(counted).sum() for counted in (self.changed, self.lost, [one.sum() for one in spoilt])]
        sums = [found for _, found in self.sums]
        found = torch.cat([torch.stack(counts), *([torch.cat(sums).to(torch.int64).view(-1)] if sums else [])]).cpu()
        changed, self.clamped, bad = found[:3].tolist()
        shape = (-1, byte_digest.BYTES, byte_digest.WIDTH)
        numbers = byte_digest.put_together(found[3:].view(shape))
        digest = oracle.add_digests(*numbers, weights=[weight for weight, _ in self.sums])
        return changed, digest, self._spoilt_rows(spoilt) if bad else {}

    def _spoilt(self) -> list[torch.Tensor]:
        """Return bool, for the rows in `absmax` grouped by dtype: whether the row has a non-finite element."""
        return [~torch.isfinite(torch.cat(found)) for found in self._by_dtype().values()] or [
            torch.zeros(1, dtype=torch.bool, device=self.lost[0].device)
        ]

    def _by_dtype(self) -> dict[torch.dtype, list[torch.Tensor]]:
        found: dict[torch.dtype, list[torch.Tensor]] = {}
        for absmax_N, _ in self.absmax:
            found.setdefault(absmax_N.dtype, []).append(absmax_N)
        return found

    def _spoilt_rows(self, spoilt: list[torch.Tensor]) -> dict[int, int]:
        """Count the rows of each source with NaN or Inf; waits for the device."""
        found: Counter[int] = Counter()
        for dtype, rows in zip(self._by_dtype(), spoilt, strict=True):
            sources = [one for absmax_N, sources in self.absmax if absmax_N.dtype == dtype for one in sources]
            for (slot, _), part in zip(sources, rows.cpu().split([count for _, count in sources]), strict=True):
                found[slot] += int(part.sum())
        return {slot: count for slot, count in sorted(found.items()) if count}


def write(jobs: Sequence[Job], counters: Counters, receipt: bool = True) -> None:
    """Carry out writes; asynchronous.

    Args:
        jobs: writes and their sources, which must not change until the current stream has passed this point.
        receipt: whether changed codes and the digest are counted; rows that are not finite always are.

    Raises:
        ValueError: fp8 codes, which Atlas A2 and A3 do not support.
        NoKernels: the kind of a write is not in `KINDS`.
    """

    def most(write: RowWrite) -> int:
        spare = counters.sparing or write.kind not in ("int8", "copy", "int8_prequantized")
        return ELEMENTS if spare else npu_codes.way_of(_device_of(write)).elements

    for pieces in chunks_of(jobs, _kind, most):
        _write(pieces, counters, receipt)


def prepare(device: torch.device, writes: Iterable = ()) -> None:
    """Test the fused operators on the device; nothing is compiled."""
    npu_codes.way_of(device)


def _kind(write: RowWrite, source: torch.Tensor) -> tuple:
    """Return the key of writes that can be batched, whatever their destinations."""
    target, kind = write.target, write.kind
    if kind.startswith("fp8") and not isinstance(write, SchemeWrite):
        raise ValueError("Atlas A2 and A3 do not support FP8: choose the scheme int8")
    if kind == "int4":
        raise ValueError("int4 rollouts are not supported on NPUs: choose the scheme int8")
    check_kind(kind, KINDS, "npu")
    whole = 0 if write.whole is None else write.whole[1]
    return kind, source.dtype, target.dtype, target.shape[1], whole, source.device, _device_of(write)


def _device_of(write: RowWrite) -> torch.device:
    return (write.target if write.layout is None else write.layout.tensor).device


def _write(pieces: list[Piece], counters: Counters, receipt: bool) -> None:
    write, device = pieces[0].write, _device_of(pieces[0].write)
    x_NK = rows_of(pieces).to(device)
    if x_NK.numel() == 0:
        return
    scale_N = absmax_N = None
    if isinstance(write, CopyWrite):
        values_NK = x_NK.to(write.target.dtype)
        if values_NK.is_floating_point():
            absmax_N = _absmax(values_NK)
    elif isinstance(write, PrequantizedWrite):
        values_NK, scale_N = x_NK, scales_in(rows_of(pieces, lambda one: one.sent_scale)).to(device)
        absmax_N = scale_N.masked_fill(oracle.spoilt_rows(values_NK, scale_N), torch.inf)
    elif write.kind == "int8_static":
        absmax_N, scale_N = _absmax(x_NK), torch.cat([piece.write.static_scale[piece.rows] for piece in pieces])
        values_NK, lost_NK = oracle.quantize_given(x_NK, scale_N)
        if receipt:
            counters.lost.append(lost_NK.sum())
    else:
        absmax_N = (
            None if write.whole is None else _absmax(write.values(rows_of(pieces, lambda one: one.whole).to(device)))
        )
        values_NK, scale_N, absmax_N = _quantized(write.values(x_NK), absmax_N)
    if absmax_N is not None:
        counters.absmax.append((absmax_N, [(piece.slot, piece.count) for piece in pieces]))
    runs = runs_of(pieces)
    if receipt:
        _account(values_NK, scale_N, runs, counters)
    for run in runs:
        run.write(values_NK, scale_N)


def _absmax(x_NK: torch.Tensor) -> torch.Tensor:
    """Return the absmax of each row, which is not finite if an element is not."""
    return npu_codes.way_of(x_NK.device).absmax(x_NK)


def _quantized(x_NK: torch.Tensor, absmax_N: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes, scales and absmax; the absmax is that of the rows themselves if none is given."""
    if absmax_N is None:
        absmax_N = _absmax(x_NK)
    if x_NK.dtype == torch.float32:
        return *oracle.quantize_rows(x_NK, absmax_N), absmax_N
    scale_N, factor_N = reciprocals.scale_and_factor(absmax_N)
    return npu_codes.way_of(x_NK.device).codes(x_NK, factor_N), scale_N, absmax_N


def _account(values_NK: torch.Tensor, scale_N: torch.Tensor | None, runs: list[Run], counters: Counters) -> None:
    """Count the changed codes and the digest of rows that are about to be written."""
    for bytes_NB in byte_digest.of_rows(values_NK, product, scale_N):
        for run in runs:
            digits_NW = row_digits(run.first.first_row, run.count, values_NK.device)
            for sums in byte_digest.over_rows(run.of(bytes_NB), digits_NW, product):
                counters.sums.append((run.first.write.weight, sums))
    if scale_N is not None:
        for run in runs:
            if (pair := run.sample(values_NK)) is not None:
                counters.changed.append((pair[0] != pair[1]).sum())
