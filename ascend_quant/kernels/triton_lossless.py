"""Rows of BF16 in three quarters of their bytes, and back, in Triton: one pass each; the bytes are lossless_rows.py's.

A program has one row and takes its numbers two by two, as words of 32 bits: the even one lies in the lower half.
"""

import torch
import triton
import triton.language as tl

from ascend_quant.kernels import lossless_rows

TAIL, FAR, OF_FAR, NEAR, BELOW = (
    tl.constexpr(getattr(lossless_rows, name)) for name in ("TAIL", "FAR", "OF_FAR", "NEAR", "BELOW")
)
SAMPLES = tl.constexpr(2 * lossless_rows.SAMPLE)  # more than any row's sample has
WORDS = 1024  # at a time
RANKS = triton.next_power_of_2(lossless_rows.FAR)


def pack(w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `lossless_rows.pack`."""
    N, K = w_NK.shape
    sent = torch.empty(N, K + K // 2 + lossless_rows.TAIL, dtype=torch.uint8, device=w_NK.device)
    sent[:, -lossless_rows.TAIL :] = 0
    most = torch.zeros((), dtype=torch.int32, device=w_NK.device)
    words = _aligned(w_NK).view(torch.int32)
    with torch.cuda.device_of(words):
        pack_rows[(N,)](words, sent, most, K // 2, max(1, K // lossless_rows.SAMPLE), WORDS)
    return sent, most


def unpack(sent: torch.Tensor) -> torch.Tensor:
    """See `lossless_rows.unpack`."""
    N, K = sent.shape[0], (sent.shape[1] - lossless_rows.TAIL) // 3 * 2
    found = torch.empty(N, K, dtype=torch.bfloat16, device=sent.device)
    with torch.cuda.device_of(found):
        unpack_rows[(N,)](_aligned(sent), found.view(torch.int32), K // 2, WORDS, RANKS)
    return found


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Itself, or a copy where kernels cannot read it: transports put tensors at any byte."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


@triton.jit(do_not_specialize=["step"])
def pack_rows(words, sent, most, count, step, WORDS: tl.constexpr):
    """count: words of a row. step: numbers from one to the next of the row's sample."""
    row = tl.program_id(0).to(tl.int64)
    words += row * count
    sent += row * (3 * count + TAIL)
    tail = sent + 3 * count
    least = _least(words, 2 * count, step)
    far = least * 0
    for first in range(0, count, WORDS):
        at = first + tl.arange(0, WORDS)
        inside = at < count
        word = tl.load(words + at, mask=inside, other=0, eviction_policy="evict_first")
        even, odd = (word >> 7) & 0xFF, (word >> 23) & 0xFF  # exponents
        low = ((word >> 8) & 0x80) | (word & 0x7F) | ((word >> 16) & 0x8000) | ((word >> 8) & 0x7F00)
        tl.store(sent.to(tl.pointer_type(tl.int16)) + at, low.to(tl.int16), mask=inside)
        tl.store(sent + 2 * count + at, (_near(even, least) | (_near(odd, least) << 4)).to(tl.uint8), mask=inside)
        even_is_far = (even > 0) & (_near(even, least) == 0)
        odd_is_far = (odd > 0) & (_near(odd, least) == 0)
        both = even_is_far.to(tl.int32) + odd_is_far.to(tl.int32)
        found = tl.sum(both, 0)
        if found > 0:  # in most steps there are none
            rank = far + tl.cumsum(both, 0) - both
            _store_far(tail, rank, 2 * at, even, even_is_far)
            _store_far(tail, rank + even_is_far.to(tl.int32), 2 * at + 1, odd, odd_is_far)
        far += found
    tl.store(tail, least.to(tl.uint8))
    tl.store(tail + 1, tl.minimum(far, FAR).to(tl.uint8))
    tl.atomic_max(most, far, sem="relaxed")


@triton.jit
def _least(words, numbers, step):
    """The least of a row's fifteen exponents: so many below the median of those of its sample that are not 0."""
    at = tl.arange(0, SAMPLES) * step
    inside = at < numbers
    bits = tl.load(words.to(tl.pointer_type(tl.int16)) + at, mask=inside, other=0).to(tl.int32)
    exponent = (bits >> 7) & 0xFF
    size = tl.sum(inside.to(tl.int32), 0)
    zeros = tl.sum((inside & (exponent == 0)).to(tl.int32), 0)
    place = tl.minimum((zeros + size) // 2, size - 1)
    low, high = size * 0, size * 0 + 255
    for _ in tl.static_range(8):  # the least number that more than `place` do not exceed
        middle = (low + high) // 2
        is_enough = tl.sum((inside & (exponent <= middle)).to(tl.int32), 0) > place
        high = tl.where(is_enough, middle, high)
        low = tl.where(is_enough, low, middle + 1)
    return tl.maximum(high - BELOW, 1)


@triton.jit
def _near(exponent, least):
    """Which of the row's fifteen this is, from 1 on; 0 for another."""
    near = exponent - least + 1
    return tl.where((near >= 1) & (near <= NEAR), near, 0)


@triton.jit
def _store_far(tail, rank, column, exponent, is_far):
    """Where these numbers are, and their exponents, as far as the row has room."""
    at, fits = tail + 2 + OF_FAR * rank, is_far & (rank < FAR)
    tl.store(at, column.to(tl.uint8), mask=fits)
    tl.store(at + 1, (column >> 8).to(tl.uint8), mask=fits)
    tl.store(at + 2, exponent.to(tl.uint8), mask=fits)


@triton.jit
def unpack_rows(sent, words, count, WORDS: tl.constexpr, RANKS: tl.constexpr):
    """count: words of a row."""
    row = tl.program_id(0).to(tl.int64)
    sent += row * (3 * count + TAIL)
    words += row * count
    tail = sent + 3 * count
    least = tl.load(tail).to(tl.int32)
    for first in range(0, count, WORDS):
        at = first + tl.arange(0, WORDS)
        inside = at < count
        low = tl.load(sent.to(tl.pointer_type(tl.int16)) + at, mask=inside, other=0).to(tl.int32)
        half = tl.load(sent + 2 * count + at, mask=inside, other=0).to(tl.int32)
        even = _number(low, _exponent(half & 0xF, least))
        tl.store(words + at, even | (_number(low >> 8, _exponent(half >> 4, least)) << 16), mask=inside)
    tl.debug_barrier()  # what follows is stored over some of these, by other threads
    rank = tl.arange(0, RANKS)
    at, valid = tail + 2 + OF_FAR * rank, rank < tl.minimum(tl.load(tail + 1).to(tl.int32), FAR)
    column = tl.load(at, mask=valid, other=0).to(tl.int32) | (tl.load(at + 1, mask=valid, other=0).to(tl.int32) << 8)
    valid &= column < 2 * count  # of damaged rows they may not be
    exponent = tl.load(at + 2, mask=valid, other=0).to(tl.int32)
    number = _number(tl.load(sent + column, mask=valid, other=0).to(tl.int32), exponent)
    tl.store(words.to(tl.pointer_type(tl.int16)) + column, number.to(tl.int16), mask=valid)


@triton.jit
def _exponent(near, least):
    return tl.where(near == 0, 0, (near + least - 1) & 0xFF)


@triton.jit
def _number(low, exponent):
    """BF16's bits, of a byte of sign and mantissa; what lies above that byte is left out."""
    return ((low & 0x80) << 8) | (exponent << 7) | (low & 0x7F)
