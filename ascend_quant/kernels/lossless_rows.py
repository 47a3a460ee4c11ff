"""Rows of BF16 in three quarters of their bytes, losslessly, by torch's operators; triton_lossless.py makes the same.

    row    K numbers
    sent   K bytes       each number's sign and mantissa
           K / 2 bytes   each number's exponent, in 4 bits: 1 to 15, which of the row's fifteen; 0: zero, or another
           96 bytes      the least of the fifteen; how many numbers have another exponent; of up to 31 of these where
                         (2 bytes) and which

Of a BF16 number's bits the sign and the seven of the mantissa are as good as random, the eight of the exponent are not:
of 4,000 normal numbers all but two lie among fifteen exponents. Which these are follows from the median of some 128
numbers of the row, so that a few large ones do not move them.
"""

from collections.abc import Iterator

import torch

TAIL = 96  # bytes: the least exponent, a count, places and exponents of those that are FAR
FAR, OF_FAR = 31, 3  # numbers of a row with another exponent, at most, and bytes of one
NEAR, BELOW = 15, 10  # exponents that half a byte tells apart, beside 0, and how many of them lie below the median
SAMPLE = 128  # numbers of a row, about, of which the median is taken
AT_ONCE = 1 << 23  # numbers: temporary memory is some 30 times as many bytes


def pack(w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 (N, 3 K / 2 + 96), and int32 (): the most numbers of a row with another exponent; asynchronous on a device.

    Unpacking gives the weight back if these are at most FAR.

    Args:
        w_NK: BF16; K a multiple of 4, at most 65,536.
    """
    N, K = w_NK.shape
    sent = torch.zeros(N, K + K // 2 + TAIL, dtype=torch.uint8, device=w_NK.device)
    most = torch.zeros((), dtype=torch.int32, device=w_NK.device)
    for rows in _slices(N, K):
        most = torch.maximum(most, _pack_rows(w_NK[rows], sent[rows]))
    return sent, most


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
    count = is_far.sum(1, dtype=torch.int32)
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


def unpack(sent: torch.Tensor) -> torch.Tensor:
    """BF16 (N, K), of the bits that were packed; of rows that were damaged, others.

    Args:
        sent: uint8 (N, 3 K / 2 + 96).
    """
    N, K = sent.shape[0], (sent.shape[1] - TAIL) // 3 * 2
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
    column = (tail[row, at] | tail[row, at + 1] << 8).long()
    row, column, far = (x[column < K] for x in (row, column, tail[row, at + 2]))  # of damaged rows they may not be
    exponent[row, column] = far
    low = sent[:, :K].to(torch.int32)
    found = (low & 0x80) << 8 | (exponent & 0xFF) << 7 | low & 0x7F
    bits.copy_(torch.where(found < 1 << 15, found, found - (1 << 16)))


def _slices(N: int, K: int) -> Iterator[slice]:
    """Of rows, few enough for temporary memory."""
    step = max(1, AT_ONCE // K)
    return (slice(begin, begin + step) for begin in range(0, N, step))
