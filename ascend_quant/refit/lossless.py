"""What stays BF16 beside codes, for engines elsewhere: in three quarters of its bytes, losslessly.

    trainer   lm_head.weight          (N, K) BF16
    sent      lm_head.weight:packed   (N, 3 K / 2 + 96) uint8, see kernels/lossless_rows.py
    engine    lm_head.weight          (N, K) BF16, the same bits

Digests are of the weights before packing and after unpacking, so the proof of a sync covers both. Only large matrices
are packed, on devices where packing takes less time than the bytes that it saves. A matrix leaves as it is if one of
its rows has more unusual exponents than there is room for.
"""

from collections.abc import Iterable, Iterator

import torch

from ascend_quant.kernels import kernels_for
from ascend_quant.kernels.lossless_rows import FAR, TAIL
from ascend_quant.refit.errors import RefitError
from ascend_quant.refit.sent import NamedTensor

MARK = ":packed"
LEAST = 1 << 20  # numbers of a tensor: others are not worth their waits
LONGEST = 1 << 16  # numbers of a row, whose places fit into two bytes


def prepare(device: torch.device) -> None:
    """Compile the kernels now, so that the first sync with codes waits for no compiler; for either side."""
    kernels = kernels_for(device)
    if kernels.PACKING_PAYS:
        kernels.unpack(kernels.pack(torch.zeros(1, 4096, dtype=torch.bfloat16, device=device))[0])


def packed(weights: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
    """The weights as they travel, large BF16 matrices packed; waits for the device once for each of these."""
    return (as_packed(name, tensor) for name, tensor in weights)


def as_packed(name: str, tensor: torch.Tensor) -> NamedTensor:
    """A weight as it travels; itself where packing would not be exact, or not be worth it."""
    fits = tensor.dim() == 2 and tensor.shape[1] % 4 == 0 and 2 * TAIL < tensor.shape[1] <= LONGEST
    if tensor.dtype != torch.bfloat16 or not fits or tensor.numel() < LEAST:
        return name, tensor
    kernels = kernels_for(tensor.device)
    if not kernels.PACKING_PAYS:
        return name, tensor
    sent, most = kernels.pack(tensor)
    return (name + MARK, sent) if int(most) <= FAR else (name, tensor)


def unpacked(weights: Iterable[NamedTensor]) -> list[NamedTensor]:
    """The weights as they were before; what was packed is a new tensor.

    Raises:
        RefitError: a tensor of such a name holds none of such rows.
    """
    return [_as_unpacked(name, tensor) if name.endswith(MARK) else (name, tensor) for name, tensor in weights]


def _as_unpacked(name: str, sent: torch.Tensor) -> NamedTensor:
    rest = sent.shape[1] - TAIL if sent.dim() == 2 else 0
    if sent.dtype != torch.uint8 or rest <= 0 or rest % 6:
        raise RefitError(
            f"{name}: got {sent.dtype} of shape {tuple(sent.shape)}; send uint8 rows of 3 K / 2 + {TAIL} bytes, K a "
            "multiple of 4 (ascend_quant.refit.lossless.as_packed)"
        )
    return name.removesuffix(MARK), kernels_for(sent.device).unpack(sent)
