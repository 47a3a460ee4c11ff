"""Roundings of int8 that keep an update which is smaller than a code: their definition, in NumPy, bit for bit.

At RL's learning rates a step moves a weight by far less than a code, so that nearest rounding returns the code of the
step before. Both see the trainer's weights as they are, in float32: BF16 would have swallowed the update already.

    magnitude  absmax of the float32 row, rounded to BF16 away from zero: no weight lies above the largest code
    scale      magnitude / 127 in float32, 0 if the magnitude is below 2**-100; factor = float32(1 / scale), or 0
    hashed     t = |w| * factor in float32; code = sign(w) * min(floor(t) + (u < 2**24 * (t - floor(t))), 127)
    carried    x = w + residual in float32; code = round_half_even(x * factor); next residual = x - code * scale

Of an element with the index i in its whole parameter, u = mixed(mixed(i ^ a) ^ b) modulo 2**24. The words a and b are
the first 8 bytes, little-endian, of BLAKE2b over "seed/step/name". `mixed` is Thomas Mueller's permutation of 32 bits
(stackoverflow.com/a/12996028): it shifts by 16 alone, which is to take a half of a word, so that it needs no operator
that NPUs lack. u is uniform and t - floor(t) exact, so the mean over seeds is w but for 2**-24 of a code and float32's
rounding of t, less than 2**-16 of one. What is carried is exact: code * scale + residual is x, bit for bit.
"""

from hashlib import blake2b

import numpy as np
import torch

from ascend_quant.schemes import arithmetic

DRAWS = 2**24
FACTOR = 0x45D9F3B


def key_of(seed: int, step: int, name: str) -> tuple[int, int]:
    """The two words of 32 bits that a parameter's draws of one step depend on."""
    found = blake2b(f"{seed}/{step}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(found[:4], "little"), int.from_bytes(found[4:], "little")


def hashed(w_NK: torch.Tensor, seed: int, step: int, name: str, first: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 codes (..., N, K) and float32 scales (..., N) of whole rows, on the CPU.

    Args:
        w_NK: any float dtype, taken in float32.
        name: of the parameter. first: the index in it of the first element here, rows behind one another.
    """
    w, scale, factor = _scaled(w_NK)
    numbers = (np.arange(w.size, dtype=np.uint64) + np.uint64(first)).astype(np.uint32).reshape(w.shape)
    for word in key_of(seed, step, name):
        numbers = _mixed(numbers ^ np.uint32(word))
    with np.errstate(invalid="ignore"):
        t = np.abs(w) * factor
        whole = np.floor(t)
        up = numbers % np.uint32(DRAWS) < (t - whole) * np.float32(DRAWS)
        codes = np.copysign(np.minimum(whole + up, 127), w).astype(np.int8)
    return torch.from_numpy(codes), torch.from_numpy(scale)


def carried(w_NK: torch.Tensor, residual_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The codes and scales of weights with what the codes before have left, and what these leave, float32."""
    x, scale, factor = _scaled(w_NK.float() + residual_NK)
    with np.errstate(invalid="ignore"):
        codes = np.clip(np.rint(x * factor), -127, 127).astype(np.int8)
        left = x - codes.astype(np.float32) * scale[..., None]
    return torch.from_numpy(codes), torch.from_numpy(scale), torch.from_numpy(left)


def _scaled(w_NK: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float32 (..., N, K), the scales (..., N) of its rows, and factors (..., N, 1) for their elements."""
    w = w_NK.detach().float().cpu().numpy()
    bits = np.minimum(np.abs(w).max(-1).view(np.uint32), np.uint32(0x7FC00000))  # a NaN has a payload
    magnitude = (bits + np.uint32(0xFFFF) & np.uint32(0xFFFF0000)).view(np.float32)
    scale = np.where(magnitude < arithmetic.TINY, np.float32(0), magnitude / np.float32(127))
    factor = np.zeros_like(scale)
    np.divide(1, scale.astype(np.float64), out=factor, where=(scale > 0) & np.isfinite(scale), casting="same_kind")
    return w, scale, factor[..., None]


def _mixed(x: np.ndarray) -> np.ndarray:
    for _ in range(2):
        x = (x ^ x >> np.uint32(16)) * np.uint32(FACTOR)
    return x ^ x >> np.uint32(16)
