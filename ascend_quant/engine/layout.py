"""Weights in another memory layout than a checkpoint's: those on NPUs, and int4's.

An engine's loaders see stand-ins of the checkpoint's shape. A stand-in has no memory; the refit sees what is copied
into it, and puts the rows where the weight has them.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ascend_quant.kernels.storage import WeightLayout
from ascend_quant.schemes import SCHEMES, Scheme

ATTRIBUTE = "ascend_quant_layouts"


@dataclass(frozen=True)
class Layout:
    """The layout of one weight in the engine's memory, for the refit and the loaders.

    Attributes:
        stand_in: (.., N, K) on the meta device, with the loaders' attributes.
        weight_layout: writes rows where they belong.
        scale: float32, one a row (per channel).
        copies: tensors that hold the scales in another dtype.
        scheme: of the codes.
    """

    stand_in: nn.Parameter
    weight_layout: WeightLayout
    scale: torch.Tensor
    copies: Sequence[torch.Tensor] = ()
    scheme: Scheme = SCHEMES["int8"]


def register(
    layer: nn.Module,
    name: str,
    shape: tuple[int, ...],
    weight_layout: WeightLayout,
    scale: torch.Tensor,
    **more: Any,
) -> nn.Parameter:
    """Make a layer's parameter of a tensor whose rows `weight_layout` knows.

    Args:
        shape: (.., N, K), as checkpoints have it.
        more: fields of `Layout`.

    Returns:
        The stand-in, on which the engine sets its loaders' attributes.
    """
    layer.register_parameter(name, nn.Parameter(weight_layout.tensor, requires_grad=False))
    stand_in = nn.Parameter(torch.empty(shape, dtype=torch.int8, device="meta"), requires_grad=False)
    layout = Layout(stand_in, weight_layout, scale, **more)
    setattr(layer, ATTRIBUTE, {**layouts_of(layer), name: layout})
    return stand_in


def layouts_of(layer: nn.Module) -> dict[str, Layout]:
    """A layer's weights by their names in it; empty for a layer whose weights lie as they were sent."""
    return getattr(layer, ATTRIBUTE, {})


@contextmanager
def lent(model: nn.Module) -> Generator[None]:
    """Lend the model the stand-ins as its parameters inside the block, for its loaders."""
    lent_out: list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter | None]] = []
    for layer in model.modules():
        for name, layout in layouts_of(layer).items():
            lent_out.append((layer._parameters, name, layer._parameters[name]))
            layer._parameters[name] = layout.stand_in
    try:
        yield
    finally:
        for parameters, name, own in lent_out:
            parameters[name] = own
