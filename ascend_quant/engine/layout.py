"""Weights whose memory layout differs from the checkpoint's: on NPUs, and for int4.

The engine's weight loaders see a placeholder of the checkpoint's shape, without memory. The refit intercepts copies
into the placeholder, and writes the rows in the weight's layout.
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
        stand_in: (.., N, K) placeholder on the meta device, with the loaders' attributes.
        weight_layout: writes rows in the layout.
        scale: float32, one per row (output channel).
        copies: tensors with the scales in another dtype.
        scheme: the quantization scheme.
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
    """Register a layer's parameter with the memory layout `weight_layout`.

    Args:
        shape: (.., N, K), the shape in checkpoints.
        more: further fields of `Layout`.

    Returns:
        The placeholder, on which the engine sets its loaders' attributes.
    """
    layer.register_parameter(name, nn.Parameter(weight_layout.tensor, requires_grad=False))
    stand_in = nn.Parameter(torch.empty(shape, dtype=torch.int8, device="meta"), requires_grad=False)
    layout = Layout(stand_in, weight_layout, scale, **more)
    setattr(layer, ATTRIBUTE, {**layouts_of(layer), name: layout})
    return stand_in


def layouts_of(layer: nn.Module) -> dict[str, Layout]:
    """Return the layouts of a layer's weights, by name; empty for a layer in the checkpoint's layout."""
    return getattr(layer, ATTRIBUTE, {})


@contextmanager
def lent(model: nn.Module) -> Generator[None]:
    """Replace the model's parameters with placeholders inside the block, for its loaders."""
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
