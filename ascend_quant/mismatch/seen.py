"""What is kept of a layer, of the embedding and of the head while tokens pass; torch alone.

Shape suffixes: M tokens, N outputs, K input channels, V words.
"""

from typing import Any

import torch

from ascend_quant.mismatch.channels import Largest, Outliers, of_spread, outliers_of
from ascend_quant.mismatch.layer_errors import extra_bytes
from ascend_quant.schemes import Scheme

ROWS = 4096  # of a head's weight in float32 at a time


class Seen:
    """One layer: errors of its outputs, its largest inputs, and of experts each one's errors.

    Args:
        first: the whole layer's number of the first input channel that this rank holds.
    """

    def __init__(self, name: str, first: int = 0):
        self.name, self.first = name, first
        self.squares: list[torch.Tensor] = []  # (2, M): of the error and of the exact output
        self.inputs = Largest()
        self.experts: dict[int, list[torch.Tensor]] = {}

    def add(self, x_MK: torch.Tensor, rounded_MN: torch.Tensor, exact_MN: torch.Tensor) -> None:
        """Take some tokens' inputs and outputs."""
        self.squares.append(torch.stack([(rounded_MN - exact_MN).square().sum(-1), exact_MN.square().sum(-1)]).cpu())
        self.inputs.add(x_MK)

    def add_expert(self, expert: int, ratio: torch.Tensor) -> None:
        """Take ||e||^2 / ||y||^2 (tokens,) of an expert, by its number in the checkpoint."""
        self.experts.setdefault(expert, []).append(ratio.cpu())

    def summary(self, weights: list[torch.Tensor], scheme: Scheme) -> dict[str, Any]:
        """All of it, in plain values.

        Args:
            weights: (.., N, K) that this rank holds: one, or experts' w13 and w2.

        Returns:
            name; error_squared, norm_squared: of each token, on this rank; extra_bytes: what it costs not to quantize
            it; shape: K of each weight; experts: number, sum of the ratios, tokens; inputs, columns: the `Outliers` of
            the activations and of the weight, where they have one scale (int8).
        """
        error, norm = torch.cat(self.squares, dim=1).tolist() if self.squares else ([], [])
        experts = [(expert, torch.cat(parts)) for expert, parts in sorted(self.experts.items())]
        columns = weights[0] if len(weights) == 1 else None
        coarse = scheme.codes == "int8"  # floats round relative to each element, int4 leaves activations
        return {
            "name": self.name,
            "error_squared": error,
            "norm_squared": norm,
            "extra_bytes": sum(extra_bytes(weight, scheme) for weight in weights),
            "shape": [weight.shape[-1] for weight in weights],
            "experts": [[expert, ratio.sum().item(), len(ratio)] for expert, ratio in experts],
            "inputs": _plain(self.inputs.outliers() if coarse else Outliers(), self.first),
            "columns": _plain(outliers_of(columns) if coarse and columns is not None else Outliers(), self.first),
        }


class EmbeddingSeen:
    """The embedding's outputs: the first hidden states."""

    def __init__(self, name: str):
        self.name, self.hook = name, None
        self.outputs = Largest()

    def add(self, hidden_MK: torch.Tensor) -> None:
        """Take some tokens' hidden states."""
        self.outputs.add(hidden_MK.reshape(-1, hidden_MK.shape[-1]))

    def summary(self) -> dict[str, Any]:
        """The name and the channels that lie out."""
        if self.hook is not None:
            self.hook.remove()
        return {"what": "embedding", "name": self.name, **_plain(self.outputs.outliers())}


class HeadSeen:
    """The head: the channels of the last hidden state by which logits differ, h_k^2 times the variance of its column.

    An error in one of the few that carry most of it is enlarged by as much.
    """

    def __init__(self):
        self.name, self.hook = "lm_head", None
        self.weight_VK: torch.Tensor | None = None
        self.squares, self.tokens = 0.0, 0

    def add(self, name: str, weight_VK: torch.Tensor, hidden_MK: torch.Tensor) -> None:
        """Take the head and some tokens' last hidden states."""
        self.name, self.weight_VK = name, weight_VK
        self.squares = self.squares + hidden_MK.float().square().sum(0)
        self.tokens += len(hidden_MK)

    def summary(self) -> dict[str, Any]:
        """The name and the channels that lie out."""
        if self.hook is not None:
            self.hook.remove()
        out = Outliers()
        if self.tokens:
            out = of_spread(self.squares.cpu() / self.tokens * _column_variance(self.weight_VK).cpu())
        return {"what": "head", "name": self.name, **_plain(out)}


def _column_variance(weight_VK: torch.Tensor) -> torch.Tensor:
    """Over the words: float32 (K,)."""
    mean_K = sum(rows.float().sum(0) for rows in weight_VK.split(ROWS)) / len(weight_VK)
    return sum((rows.float() - mean_K).square().sum(0) for rows in weight_VK.split(ROWS)) / len(weight_VK)


def _plain(out: Outliers, first: int = 0) -> dict[str, Any]:
    return {"channels": [first + channel for channel in out.channels], "gain": out.gain}
