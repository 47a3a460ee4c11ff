"""Channels that are so large that one scale for all makes the others coarse.

`gain` says how much coarser: the largest magnitude that shares a scale, over the largest outside the few outlying
channels. Of Gaussian data it is 1; with int8, an error of the other channels grows as it does.

Shape suffixes: M tokens or rows that have a scale each, K channels, T the largest of them.
"""

from dataclasses import dataclass

import torch

MOST = 32  # channels that may lie out, and a quarter of them all
OFTEN = 0.5  # of the tokens that have a channel among their largest
LIMIT = 3.0


@dataclass(frozen=True)
class Outliers:
    """The outlying channels, and how much coarser they make the others (1 where there are none)."""

    channels: tuple[int, ...] = ()
    gain: float = 1.0


class Largest:
    """Collects the largest magnitudes of vectors (M, K), as they come."""

    def __init__(self):
        self.values: list[torch.Tensor] = []
        self.places: list[torch.Tensor] = []
        self.channels = 0

    def add(self, x_MK: torch.Tensor) -> None:
        """Take vectors of any float dtype."""
        self.channels = x_MK.shape[1]
        found = x_MK.float().abs().topk(min(MOST, self.channels // 4) + 1, dim=-1)
        self.values.append(found.values.cpu())
        self.places.append(found.indices.cpu())

    def outliers(self) -> Outliers:
        """The channels that are among the largest of most vectors and LIMIT times as large as what is left."""
        if not self.values or not sum(map(len, self.values)):
            return Outliers()
        value_MT, place_MT = torch.cat(self.values), torch.cat(self.places)
        often = torch.bincount(place_MT[:, :-1].flatten(), minlength=self.channels) >= OFTEN * len(value_MT)
        rest = _largest(value_MT, ~often[place_MT]).square().mean().sqrt()
        squares = torch.zeros(self.channels).index_add_(0, place_MT.flatten(), value_MT.square().flatten())
        out = often & ((squares / len(value_MT)).sqrt() >= LIMIT * rest)
        rest_M = _largest(value_MT, ~out[place_MT])
        gain = (value_MT[:, 0].square().mean() / rest_M.square().mean()).sqrt().item() if rest_M.any() else 1.0
        return Outliers(tuple(out.nonzero().flatten().tolist()), gain if out.any() else 1.0)


def outliers_of(x_MK: torch.Tensor) -> Outliers:
    """Those of a matrix whose rows have a scale each."""
    largest = Largest()
    for rows in x_MK.split(max(1, (1 << 23) // x_MK.shape[1])):
        largest.add(rows)
    return largest.outliers()


def of_spread(square_K: torch.Tensor) -> Outliers:
    """Channels that carry most of a sum over all: those LIMIT times (in amplitude) as large as all the others together.

    Args:
        square_K: each channel's part of the sum of squares.
    """
    out = square_K > LIMIT**2 * square_K.median() * 4
    if not out.any() or out.float().mean() > 1 / 4:
        return Outliers()
    gain = (square_K.mean() / square_K[~out].mean()).sqrt().item()
    return Outliers(tuple(out.nonzero().flatten().tolist()), gain)


def _largest(value_MT: torch.Tensor, taken_MT: torch.Tensor) -> torch.Tensor:
    """The largest (M,) among those that are taken: the last one at least, which bounds what was not kept."""
    return torch.maximum((value_MT * taken_MT).amax(-1), value_MT[:, -1])
