"""Quantization of a weight as `oracle.quantize` defines it, a few rows at a time.

A work space of a few rows that stays in the processor's cache is several times faster than the oracle on whole weights,
with one thread: torch's threads synchronize after every small operation, which on a busy machine costs ten times what
they gain. Rows are divided into tiles with one scale each:

    row (1, K)    group (1, group)    block (128, 128)    tensor (N, K)

A scheme's file in `schemes/` defines its tile. A scheme with its own rule (`largest` is None) is quantized by its
`quantize` method, also a few rows at a time.

Shape suffixes: N output channels, K input channels, R rows at a time, I and J tiles along N and K.
"""

from collections.abc import Callable, Iterator

import torch

from ascend_quant import oracle
from ascend_quant.schemes import Scheme, definition_of

ELEMENTS = 1 << 20  # elements at a time: float32 twice is 8 MiB; with fewer, calls dominate


class Quantizer:
    """Quantizes weights of one scheme."""

    def __init__(self, scheme: Scheme):
        self.scheme, self.definition = scheme, definition_of(scheme)
        self._space = torch.empty(0, dtype=torch.float32), torch.empty(0, dtype=torch.float32)

    def quantize(self, w_NK: torch.Tensor, sink: Callable[[int, torch.Tensor], None]) -> torch.Tensor:
        """Quantize a weight; pass codes to `sink`, and return scales.

        Args:
            sink: called with the index of the first row, and codes (R, K); int4 as int8.

        Returns:
            Scales (I, J), one per tile, in float32 (BF16 for int4). Non-finite elements make their scale
                non-finite.
        """
        height, width = self.definition.tile(*w_NK.shape)
        whole = self.scheme.shares == "tensor"
        absmax = self._absmax(w_NK) if whole else None
        scales = []
        for first, part_RK in self._parts(w_NK, 1 if whole else height):
            rows, columns = part_RK.shape
            if self.definition.largest is None or (not whole and rows % height) or columns % width:
                codes_RK, scale_IJ = oracle.quantize(part_RK, self.scheme)
            else:
                codes_RK, scale_IJ = self._tiles(part_RK, (rows if whole else height, width), absmax)
            sink(first, codes_RK)
            scales.append(scale_IJ)
        return scales[0] if whole else torch.cat(scales)

    def _parts(self, w_NK: torch.Tensor, height: int) -> Iterator[tuple[int, torch.Tensor]]:
        step = max(1, ELEMENTS // max(1, w_NK.shape[1]) // height) * height
        for first in range(0, len(w_NK), step):
            yield first, w_NK[first : first + step]

    def _values(self, part_RK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 (R, K): rows rounded to BF16 in the work space, and a second buffer of the same size."""
        if self._space[0].numel() < (count := part_RK.numel()):
            self._space = tuple(torch.empty(count, dtype=torch.float32) for _ in range(2))
        values_RK, room_RK = (space[:count].view(part_RK.shape) for space in self._space)
        values_RK.copy_(part_RK.to(torch.bfloat16))
        return values_RK, room_RK

    def _absmax(self, w_NK: torch.Tensor) -> torch.Tensor:
        """Return the absmax of the whole weight, (1, 1)."""
        tops = []
        for _, part_RK in self._parts(w_NK, 1):
            values_RK, room_RK = self._values(part_RK)
            tops.append(torch.abs(values_RK, out=room_RK).amax())
        return torch.stack(tops).amax().view(1, 1)

    def _tiles(self, part_RK: torch.Tensor, tile: tuple[int, int], absmax_IJ: torch.Tensor | None):
        """Return codes (R, K) and scales (I, J) of rows that consist of whole tiles."""
        (rows, columns), (height, width), rule = part_RK.shape, tile, self.definition
        values_RK, room_RK = self._values(part_RK)
        cut = (rows // height, height, columns // width, width)
        values = values_RK.view(cut)
        if absmax_IJ is None:
            absmax_IJ = torch.abs(values_RK, out=room_RK).view(cut).amax(3).amax(1)
        scale_IJ = oracle.scale_of(absmax_IJ, rule.largest).to(getattr(torch, rule.scales(rows, columns).dtype))
        divisor = scale_IJ.float()[:, None, :, None]
        if (zero := divisor == 0).any():  # all codes become +0, since fp8 also has -0
            values.masked_fill_(zero, 0.0)
            divisor = torch.where(zero, 1.0, divisor)
        torch.div(values, divisor, out=values)
        if rule.rounds:
            values_RK.round_()
        return values_RK.clamp_(-rule.largest, rule.largest).to(getattr(torch, rule.codes_dtype)), scale_IJ
