"""BF16 weights in three quarters of their bytes, losslessly: what stays BF16 beside codes, for engines elsewhere.

    trainer   lm_head.weight          (N, K) BF16
    sent      lm_head.weight:packed   (N, 3 K / 2 + 96) uint8
    engine    lm_head.weight          (N, K) BF16, the same bits

Of a BF16 number's bits the sign and the seven of the mantissa are as good as random, the eight of the exponent are not:
nearly all of a row lie among fifteen, of 4,000 normal numbers all but two. So a row is K bytes of signs and mantissas,
K half bytes (1 to 15: which of the fifteen; 0: an exponent of 0, as zeros have), and 96 bytes: the least of the
fifteen, how many exponents are others, and of up to 31 of these the place (2 bytes) and the exponent. A tensor of which
a row has more leaves as it is.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch

from ascend_quant.refit.errors import RefitError
from ascend_quant.refit.sent import NamedTensor

MARK = ":packed"
TAIL = 96  # bytes: the least exponent, a count, places and exponents of those that are FAR
FAR, OF_FAR = 31, 3  # other exponents of a row, at most, and bytes of one
NEAR, BELOW = 15, 10  # exponents that half a byte tells apart, beside 0, and how many of them lie below the median
SAMPLE = 128  # numbers of a row, about, of which the median is taken
LEAST = 1 << 20  # numbers of a tensor: others are not worth their waits
LONGEST = 1 << 16  # numbers of a row, whose places fit into two bytes
AT_ONCE = 1 << 23  # numbers: temporary memory is some 30 times as many bytes


def packed(groups: Iterable[Sequence[NamedTensor]]) -> Iterator[list[NamedTensor]]:
    """Groups of weights, their large BF16 matrices packed; waits for the device once for each of these."""
    for group in groups:
        yield [as_packed(name, tensor) for name, tensor in group]


def unpacked(weights: Iterable[NamedTensor]) -> list[NamedTensor]:
    """The weights as they were before; what was packed is a new tensor.

    Raises:
        RefitError: a tensor of such a name holds none of such rows.
    """
    return [(name.removesuffix(MARK), unpack(name, w)) if name.endswith(MARK) else (name, w) for name, w in weights]


def as_packed(name: str, tensor: torch.Tensor) -> NamedTensor:
    """A weight as it travels; itself where packing would not be exact, or not be worth it."""
    fits = tensor.dim() == 2 and tensor.shape[1] % 2 == 0 and 2 * TAIL < tensor.shape[1] <= LONGEST
    if tensor.dtype != torch.bfloat16 or not fits or tensor.numel() < LEAST:
        return name, tensor
    sent = pack(tensor)
    return (name, tensor) if sent is None else (name + MARK, sent)


def pack(w_NK: torch.Tensor) -> torch.Tensor | None:
    """uint8 (N, 3 K / 2 + 96); None if a row has more than FAR exponents that are not among its fifteen.

    Args:
        w_NK: BF16; K even.
    """
    N, K = w_NK.shape
    sent = torch.zeros(N, K + K // 2 + TAIL, dtype=torch.uint8, device=w_NK.device)
    most = torch.zeros((), dtype=torch.int64, device=w_NK.device)
    for rows in _slices(N, K):
        most = torch.maximum(most, _pack_rows(w_NK[rows], sent[rows]))
    return sent if int(most) <= FAR else None


def _pack_rows(w_NK: torch.Tensor, sent: torch.Tensor) -> torch.Tensor:
    """Fill rows; returns the most exponents of one that are not among its fifteen."""
    K = w_NK.shape[1]
    bits = w_NK.contiguous().view(torch.int16).to(torch.int32)  # which every device shifts
    exponent = bits >> 7 & 0xFF
    least = (_median(exponent[:, :: max(1, K // SAMPLE)]) - BELOW).clamp(min=1)
    near = exponent - least + 1
    is_near = (near >= 1) & (near <= NEAR)
    is_far = ~is_near & (exponent > 0)
    near = torch.where(is_near, near, 0)
    sent[:, :K] = (bits >> 8 & 0x80 | bits & 0x7F).to(torch.uint8)
    sent[:, K : K + K // 2] = (near[:, 0::2] | near[:, 1::2] << 4).to(torch.uint8)
    count = is_far.sum(1)
    tail = sent[:, -TAIL:]
    tail[:, 0], tail[:, 1] = least.flatten().to(torch.uint8), count.clamp(max=FAR).to(torch.uint8)
    row, column = is_far.nonzero(as_tuple=True)
    rank = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
    row, column, at = (x[rank < FAR] for x in (row, column, 2 + OF_FAR * rank))
    for byte, value in enumerate((column & 0xFF, column >> 8, exponent[row, column])):
        tail[row, at + byte] = value.to(torch.uint8)
    return count.max()


def _median(numbers: torch.Tensor) -> torch.Tensor:
    """int32 (N, 1): of those in each row that are not 0; 0 where none is."""
    zeros = (numbers == 0).sum(1, keepdim=True)
    ordered = numbers.float().sort(1).values  # of integers, devices sort none
    return ordered.gather(1, ((zeros + numbers.shape[1]) // 2).clamp(max=numbers.shape[1] - 1)).to(torch.int32)


def unpack(name: str, sent: torch.Tensor) -> torch.Tensor:
    """BF16 (N, K), of the bits that were packed.

    Raises:
        RefitError: these are no such rows.
    """
    rest = sent.shape[-1] - TAIL if sent.dim() == 2 else 0
    if sent.dtype != torch.uint8 or rest <= 0 or rest % 3:
        raise RefitError(
            f"{name}: got {sent.dtype} of shape {tuple(sent.shape)}; send uint8 rows of 3 K / 2 + {TAIL} bytes "
            "(ascend_quant.refit.packing.pack)"
        )
    N, K = sent.shape[0], rest // 3 * 2
    found = torch.empty(N, K, dtype=torch.bfloat16, device=sent.device)
    for rows in _slices(N, K):
        _unpack_rows(sent[rows], found[rows].view(torch.int16))
    return found


def _unpack_rows(sent: torch.Tensor, bits: torch.Tensor) -> None:
    K = bits.shape[1]
    tail = sent[:, -TAIL:].to(torch.int32)
    halves = sent[:, K : K + K // 2].to(torch.int32)
    near = torch.stack((halves & 0xF, halves >> 4), 2).flatten(1)
    exponent = torch.where(near == 0, 0, near + tail[:, :1] - 1)
    row, rank = (torch.arange(FAR, device=sent.device) < tail[:, 1:2]).nonzero(as_tuple=True)
    at = 2 + OF_FAR * rank
    exponent[row, (tail[row, at] | tail[row, at + 1] << 8).long()] = tail[row, at + 2]
    low = sent[:, :K].to(torch.int32)
    found = (low & 0x80) << 8 | exponent << 7 | low & 0x7F
    bits.copy_(torch.where(found < 1 << 15, found, found - (1 << 16)))


def _slices(N: int, K: int) -> Iterator[slice]:
    """Of rows, few enough for temporary memory."""
    step = max(1, AT_ONCE // K)
    return (slice(begin, begin + step) for begin in range(0, N, step))
