"""Addresses of a model's parameters, which captured CUDA graphs read and refits write."""

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
        now = getattr(self.layer, self.leaf, None)  # the layer's tensor, whether a parameter or not
        return now is None or now.data_ptr() != self.data.data_ptr()


class Addresses:
    """The current memory addresses of all parameters, including scales, and tied ones under each name.

    Different views of the same memory, and buffers, are not distinguished.
    """

    def __init__(self, model: nn.Module):
        self._kept: list[_Parameter] = []
        for name, own in model.named_parameters(remove_duplicate=False):
            layer, _, leaf = name.rpartition(".")
            self._kept.append(_Parameter(name, model.get_submodule(layer), leaf, own, own.data))

    def moved(self) -> list[str]:
        """Return the names of parameters that were removed or whose memory has moved."""
        return [one.name for one in self._kept if one.has_moved()]

    def put_back(self) -> None:
        """Restore the original parameters of the layers in their original memory, whatever its contents."""
        for one in filter(_Parameter.has_moved, self._kept):
            vars(one.layer).pop(one.leaf, None)
            one.own.data = one.data
            one.layer._parameters[one.leaf] = one.own
