"""Where a model's parameters are: captured CUDA graphs read these addresses, and refits write there."""

from typing import NamedTuple

import torch
from torch import nn


class _Parameter(NamedTuple):
    name: str
    layer: nn.Module
    leaf: str
    own: nn.Parameter
    data: torch.Tensor

    def has_moved(self) -> bool:
        now = getattr(self.layer, self.leaf, None)  # what the layer computes with, be it a parameter or not
        return now is None or now.data_ptr() != self.data.data_ptr()


class Addresses:
    """The memory addresses of all parameters as they are now, with scales, tied ones at each of their places.

    Another view of the same memory, and what is no parameter (a buffer), they do not tell apart.
    """

    def __init__(self, model: nn.Module):
        self._kept: list[_Parameter] = []
        for name, own in model.named_parameters(remove_duplicate=False):
            layer, _, leaf = name.rpartition(".")
            self._kept.append(_Parameter(name, model.get_submodule(layer), leaf, own, own.data))

    def moved(self) -> list[str]:
        """Return the names of parameters that have gone, or whose bytes are elsewhere."""
        return [one.name for one in self._kept if one.has_moved()]

    def put_back(self) -> None:
        """Give the layers the parameters that they had, with the memory that they had, whatever it holds."""
        for one in filter(_Parameter.has_moved, self._kept):
            vars(one.layer).pop(one.leaf, None)
            one.own.data = one.data
            one.layer._parameters[one.leaf] = one.own
