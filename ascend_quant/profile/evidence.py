"""Evidence about the smoothing factor (SmoothQuant) of each input channel, from a checkpoint's codes.

Every code bounds x (`arithmetic.magnitudes`), and therefore |w| * factor. The intersection of these bounds over a
channel is an interval of factors that all reproduce its codes. The ratio of the norms is far too coarse: BF16 rounding
is off by up to 2**-9, and a relative error of d in a factor changes about mean|code| * d of the codes.

If no factor explains a channel (GPTQ's codes are not the nearest ones), least squares are used.
"""

from collections.abc import Iterator

import torch

from ascend_quant.profile.arithmetic import down, magnitudes, rounded_magnitudes, smoothed, up
from ascend_quant.profile.layers import Pair
from ascend_quant.profile.rules import Rule

BLOCK_ELEMENTS = 1 << 22  # elements per block of rows; limits the work space for a large weight
CLOSE = 2.0**-7  # resolution of least squares, as a relative difference of factors
Range = tuple[torch.Tensor, torch.Tensor]


class Evidence:
    """Bounds and least-squares sums of positive factors, each float32 (K).

    Attributes:
        lower, upper: bounds within which every code is reproduced; lower > upper if no factor does.
        product, square: sums of code * y and y * y over rows, where y = w / scale; their ratio is the least-squares
            factor.
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
        """Add the evidence that a weight's codes give about the smoothing factors of its columns (input channels).

        Args:
            divisors: bounds of the divisors (N) of its rows; float32 arithmetic only.
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
        """Add the evidence of codes about the factors of a weight's *rows*, whose number is that of the channels here.

        Args:
            columns: bounds of the factors (K) of its columns; None without factors.
        """
        for rows in blocks(w_NK):
            codes, scale = codes_NK[rows], scale_N[rows].unsqueeze(-1)
            ends = tuple(smoothed(w_NK[rows], Rule(True, end_K), arithmetic) for end_K in columns or (None, None))
            self._narrow(ends, codes, magnitudes(codes, scale, arithmetic), dim=1, part=rows)

    def add_values(self, w_NK: torch.Tensor, result_NK: torch.Tensor) -> None:
        """Add the evidence of a weight that was scaled and not quantized."""
        self._narrow((w_NK.float(), w_NK.float()), result_NK, rounded_magnitudes(result_NK), dim=0)

    def _narrow(self, w: Range, result: torch.Tensor, size: Range, dim: int, part: slice = slice(None)) -> None:
        """Intersect with size[0] <= |w| * factor <= size[1] over `dim`; `result` has the sign of w, or is 0."""
        turned = (w[1].sign() * result.sign()) < 0
        lower = torch.where(size[0] == 0, 0.0, size[0] / w[1].abs()).masked_fill(turned, torch.inf)
        upper = torch.where(w[0] == 0, torch.inf, size[1] / w[0].abs())
        self.lower[part] = torch.maximum(self.lower[part], lower.amax(dim))
        self.upper[part] = torch.minimum(self.upper[part], upper.amin(dim))

    def narrowed(self, other: "Evidence") -> "Evidence":
        """Return the intersection with other bounds of the same factors, in channels where that is not empty."""
        lower, upper = torch.maximum(self.lower, other.lower), torch.minimum(self.upper, other.upper)
        left = lower <= upper
        result = Evidence(0)
        result.lower, result.upper = torch.where(left, lower, self.lower), torch.where(left, upper, self.upper)
        result.product, result.square = self.product, self.square
        return result

    def inverse(self) -> "Evidence":
        """Return the bounds of 1 / factor."""
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
        """Return bool (K): whether a factor reproduces every code of the channel."""
        return self.lower <= self.upper

    @property
    def allows_one(self) -> bool:
        """True if every code is explained without a factor."""
        return bool(((self.lower <= 1) & (self.upper >= 1)).all())

    def range(self, hint: torch.Tensor | None = None) -> Range:
        """Return the bounds; if they are open or crossed, twice the chosen factor."""
        chosen = self.factor(hint)
        closed = self.explained & (self.lower > 0) & (self.upper < torch.inf)
        return torch.where(closed, self.lower, chosen), torch.where(closed, self.upper, chosen)

    def factor(self, hint: torch.Tensor | None = None) -> torch.Tensor:
        """Return a factor for each channel, float32 (K): a BF16 number if possible, otherwise the midpoint.

        Args:
            hint: (K) the factor up to BF16 rounding, from a norm; NaN if unknown.
        """
        found = self._inside()
        squares = torch.where(self.square > 0, self.product / self.square, torch.ones_like(self.square))
        if hint is not None:
            told = hint.isfinite()
            squares = torch.where(told, squares.clamp(hint * (1 - CLOSE), hint * (1 + CLOSE)), squares)
            found = torch.where(told & (self.upper == torch.inf) & (self.lower == 0), hint, found)
        return torch.where(self.explained, found, squares)

    def _inside(self) -> torch.Tensor:
        """Return a number between the bounds; 1 if there are none."""
        low, high = self.lower, self.upper
        middle = torch.where(high == torch.inf, torch.where(low > 0, low * 2, 1.0), (low + high) / 2)
        rounded = middle.to(torch.bfloat16).float()
        for candidate in (down(high.clamp(max=3e38)), up(low.clamp(max=3e38)), rounded):
            middle = torch.where((candidate >= low) & (candidate <= high) & (candidate > 0), candidate, middle)
        return torch.where((low <= 1) & (high >= 1), 1.0, middle)


def blocks(w_NK: torch.Tensor) -> Iterator[slice]:
    """Yield rows in blocks of about BLOCK_ELEMENTS, at least one row each."""
    step = max(1, BLOCK_ELEMENTS // max(1, w_NK.shape[1]))
    return (slice(first, first + step) for first in range(0, w_NK.shape[0], step))
