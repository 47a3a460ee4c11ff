"""Weights that lie otherwise than a checkpoint has them: those on NPUs, and int4's.

vLLM's loaders see stand-ins of the checkpoint's shape. A stand-in has no memory; the refit sees what is copied into it,
and puts the rows where the weight has them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.model_executor.utils import set_weight_attrs

from ascend_quant.kernels.moves import Place
from ascend_quant.schemes import SCHEMES, Scheme

ATTRIBUTE = "ascend_quant_lying"


@dataclass(frozen=True)
class Lying:
    """What the refit and the loaders need to know of one weight.

    Attributes:
        stand_in: (.., N, K) on the meta device, with the loaders' attributes.
        place: puts rows where they belong.
        scale: float32, one a row.
        copies: tensors that hold the scales in another dtype.
        scheme: of the codes.
    """

    stand_in: nn.Parameter
    place: Place
    scale: torch.Tensor
    copies: Sequence[torch.Tensor] = ()
    scheme: Scheme = SCHEMES["int8"]


def register(
    layer: nn.Module,
    name: str,
    shape: tuple[int, ...],
    place: Place,
    scale: torch.Tensor,
    attributes: dict,
    **more: Any,
) -> None:
    """Make a layer's parameter of a tensor whose rows `place` knows.

    Args:
        shape: (.., N, K), as checkpoints have it.
        attributes: the loaders'.
        more: fields of `Lying`.
    """
    layer.register_parameter(name, nn.Parameter(place.tensor, requires_grad=False))
    stand_in = nn.Parameter(torch.empty(shape, dtype=torch.int8, device="meta"), requires_grad=False)
    set_weight_attrs(stand_in, attributes)
    lying = Lying(stand_in, place, scale, **more)
    setattr(layer, ATTRIBUTE, {**lying_of(layer), name: lying})


def lying_of(layer: nn.Module) -> dict[str, Lying]:
    """A layer's weights by their names in it; empty for a layer whose weights lie as they were sent."""
    return getattr(layer, ATTRIBUTE, {})


@contextmanager
def lent(model: nn.Module) -> Iterator[None]:
    """Inside, the model's parameters are the stand-ins, for its loaders."""
    lent_out = []
    for layer in model.modules():
        for name, lying in lying_of(layer).items():
            lent_out.append((layer._parameters, name, layer._parameters[name]))
            layer._parameters[name] = lying.stand_in
    try:
        yield
    finally:
        for parameters, name, own in lent_out:
            parameters[name] = own
