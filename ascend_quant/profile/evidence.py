"""Evidence in a checkpoint's codes of the smoothing factor (SmoothQuant) of each input channel.

Every code says between which bounds x lies (`arithmetic.magnitudes`), so |w| * factor does, and all codes of a channel
leave an interval for its one factor: any number in it reproduces all of them. The norm's own ratio is far too coarse:
its BF16 rounding is off by up to 2**-9, and a factor that is off by d changes about mean|code| * d of the codes.

Where no factor explains a channel (GPTQ's codes are not the nearest ones) least squares remain.
"""

from collections.abc import Iterator

import torch

from ascend_quant.profile.arithmetic import down, magnitudes, rounded_magnitudes, smoothed, up
from ascend_quant.profile.layers import Pair
from ascend_quant.profile.rules import Rule

BLOCK_ELEMENTS = 1 << 22  # rows taken together; bounds what a large weight costs beside itself
CLOSE = 2.0**-7  # factors that differ by less than least squares can tell
Range = tuple[torch.Tensor, torch.Tensor]


class Evidence:
    """Bounds and least-squares sums, each float32 (K), of positive factors.

    Attributes:
        lower, upper: between them every code is reproduced; crossed where no factor does it.
        product, square: sums of code * y and y * y over rows, y = w / scale; their ratio is the least-squares factor.
    """

    def __init__(self, channels: int):
        self.lower = torch.zeros(channels)
        self.upper = torch.full((channels,), torch.inf)
        self.product = torch.zeros(channels)
        self.square = torch.zeros(channels)

    def add_codes(
        self,
        w_NK: torch.Tensor,
        codes_NK: torch.Tensor,
        scale_N: torch.Tensor,
        arithmetic: str,
        divisors: Range | None = None,
    ) -> None:
        """Take in what the codes of a weight tell about the smoothing factors of its columns (input channels).

        Args:
            divisors: the bounds of the numbers (N) that its rows were divided by; float32 arithmetic only.
        """
        for rows in blocks(w_NK):
            w, codes, scale = w_NK[rows].float(), codes_NK[rows], scale_N[rows].unsqueeze(-1)
            least, largest = magnitudes(codes, scale, arithmetic)
            if divisors is not None:
                least, largest = (
                    bound * end[rows].unsqueeze(-1) for bound, end in zip((least, largest), divisors, strict=True)
                )
            self._narrow((w, w), codes, (least, largest), dim=0)
            y = torch.where(scale == 0, 0.0, w / scale)
            self.product += (codes * y).sum(0)
            self.square += (y * y).sum(0)

    def add_row_codes(
        self,
        w_NK: torch.Tensor,
        codes_NK: torch.Tensor,
        scale_N: torch.Tensor,
        arithmetic: str,
        columns: Range | None = None,
    ) -> None:
        """Take in what codes tell about the factors of a weight's *rows*, of which there are as many as channels here.

        Args:
            columns: the bounds of the factors (K) of its columns; None for no factor.
        """
        for rows in blocks(w_NK):
            codes, scale = codes_NK[rows], scale_N[rows].unsqueeze(-1)
            ends = tuple(smoothed(w_NK[rows], Rule(True, end_K), arithmetic) for end_K in columns or (None, None))
            self._narrow(ends, codes, magnitudes(codes, scale, arithmetic), dim=1, part=rows)

    def add_values(self, w_NK: torch.Tensor, result_NK: torch.Tensor) -> None:
        """Take in what a weight tells that was scaled and not quantized."""
        self._narrow((w_NK.float(), w_NK.float()), result_NK, rounded_magnitudes(result_NK), dim=0)

    def _narrow(self, w: Range, result: torch.Tensor, size: Range, dim: int, part: slice = slice(None)) -> None:
        """Intersect with size[0] <= |w| * factor <= size[1], over `dim`; `result` has the sign of w, or is 0."""
        turned = (w[1].sign() * result.sign()) < 0
        lower = torch.where(size[0] == 0, 0.0, size[0] / w[1].abs()).masked_fill(turned, torch.inf)
        upper = torch.where(w[0] == 0, torch.inf, size[1] / w[0].abs())
        self.lower[part] = torch.maximum(self.lower[part], lower.amax(dim))
        self.upper[part] = torch.minimum(self.upper[part], upper.amin(dim))

    def narrowed(self, other: "Evidence") -> "Evidence":
        """Intersected with other bounds of the same factors, in the channels where that leaves one."""
        lower, upper = torch.maximum(self.lower, other.lower), torch.minimum(self.upper, other.upper)
        left = lower <= upper
        result = Evidence(0)
        result.lower, result.upper = torch.where(left, lower, self.lower), torch.where(left, upper, self.upper)
        result.product, result.square = self.product, self.square
        return result

    def inverse(self) -> "Evidence":
        """Bounds of 1 / factor."""
        result = Evidence(self.lower.numel())
        result.lower, result.upper = 1 / self.upper, 1 / self.lower
        return result

    def gathered(self, pair: Pair) -> "Evidence":
        """Return the evidence of the rows of a pair's producer, gathered from that of its consumer's columns."""
        result = Evidence(self.lower.numel() // pair.groups)
        result.lower = pair.gathered(self.lower).amax(1)
        result.upper = pair.gathered(self.upper).amin(1)
        result.product = pair.gathered(self.product).sum(1)
        result.square = pair.gathered(self.square).sum(1)
        return result

    @property
    def explained(self) -> torch.Tensor:
        """Boolean (K): a factor reproduces every code of the channel."""
        return self.lower <= self.upper

    @property
    def allows_one(self) -> bool:
        """True if every code is explained without any factor."""
        return bool(((self.lower <= 1) & (self.upper >= 1)).all())

    def range(self, hint: torch.Tensor | None = None) -> Range:
        """The bounds; where they are open or crossed, twice the factor that is chosen."""
        chosen = self.factor(hint)
        closed = self.explained & (self.lower > 0) & (self.upper < torch.inf)
        return torch.where(closed, self.lower, chosen), torch.where(closed, self.upper, chosen)

    def factor(self, hint: torch.Tensor | None = None) -> torch.Tensor:
        """A factor of each channel, float32 (K): a BF16 number where one is allowed (tools take such), else the middle.

        Args:
            hint: (K) the factor to at most a BF16 rounding, from a norm; NaN where it tells nothing.
        """
        found = self._inside()
        squares = torch.where(self.square > 0, self.product / self.square, torch.ones_like(self.square))
        if hint is not None:
            told = hint.isfinite()
            squares = torch.where(told, squares.clamp(hint * (1 - CLOSE), hint * (1 + CLOSE)), squares)
            found = torch.where(told & (self.upper == torch.inf) & (self.lower == 0), hint, found)
        return torch.where(self.explained, found, squares)

    def _inside(self) -> torch.Tensor:
        """A number between the bounds; 1 where nothing bounds."""
        low, high = self.lower, self.upper
        middle = torch.where(high == torch.inf, torch.where(low > 0, low * 2, 1.0), (low + high) / 2)
        rounded = middle.to(torch.bfloat16).float()
        for candidate in (down(high.clamp(max=3e38)), up(low.clamp(max=3e38)), rounded):
            middle = torch.where((candidate >= low) & (candidate <= high) & (candidate > 0), candidate, middle)
        return torch.where((low <= 1) & (high >= 1), 1.0, middle)


def blocks(w_NK: torch.Tensor) -> Iterator[slice]:
    """Rows, `BLOCK_ELEMENTS` or one row at a time."""
    step = max(1, BLOCK_ELEMENTS // max(1, w_NK.shape[1]))
    return (slice(first, first + step) for first in range(0, w_NK.shape[0], step))
