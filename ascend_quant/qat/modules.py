"""Layers that compute with fake-quantized weights: in their forward, `self.weight` is the fake-quantized value.

Only the module's class changes. Parameters, their names, state_dict, optimizers and the weights that a trainer sends to
the rollout are unchanged, and any forward works, since all of them read `self.weight`. FSDP may wrap the model before
or after: it unshards the parameter before a forward. `torch.utils.checkpoint` runs the forward a second time.

The fake-quantized weight is saved for the backward pass, as the weight would be: for one block at a time with
activation checkpointing, for all layers without.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from ascend_quant.schemes import Scheme
from ascend_quant.schemes.layer_names import Unquantized

WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")  # prefixes that wrappers add to names


class Weight(NamedTuple):
    """A parameter to be fake-quantized.

    Attributes:
        columns: number of elements of a row, along the reduction dimension K, on this rank.
        quantize: a function from the parameter to its fake-quantized values, of the same shape.
    """

    columns: int
    quantize: Callable[[torch.Tensor], torch.Tensor]


class Candidate(NamedTuple):
    """A layer that may be fake-quantized, with its name."""

    name: str
    module: nn.Module
    weights: dict[str, Weight]


class Applied(NamedTuple):
    """The result of fake-quantizing a model: its quantized and unquantized layers.

    Attributes:
        scheme: the scheme's name.
        quantized: names of the layers that compute with fake-quantized weights.
        unquantized: layers that could be quantized but are not: heads, routers, and layers that the caller ignores.
        in_engine: the unquantized layers of all ranks that the engine must not quantize either, by the engine's names.
    """

    scheme: str
    quantized: list[str]
    unquantized: list[str]
    in_engine: Unquantized

    def __str__(self) -> str:
        others = f"; not quantized: {', '.join(self.unquantized)}" if self.unquantized else ""
        return f"{len(self.quantized)} layers are fake-quantized to {self.scheme}{others}"


class FakeQuantized:
    """Mixin that precedes a module's class.

    Attributes:
        fake_quantizers: functions that fake-quantize a parameter, by its name.
    """

    fake_quantizers: dict[str, Callable[[torch.Tensor], torch.Tensor]]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own = vars(self)  # takes precedence over nn.Module's parameters
        values = {name: quantize(getattr(self, name)) for name, quantize in self.fake_quantizers.items()}
        hidden = {name: own[name] for name in values if name in own}  # FSDP1 puts its tensors there
        own.update(values)
        try:
            return super().forward(*args, **kwargs)
        finally:
            for name in values:
                del own[name]
            own.update(hidden)


def candidates(models: Sequence[nn.Module], weights_of: Callable[[nn.Module], dict[str, Weight]]) -> list[Candidate]:
    """Return the layers of a model that may be fake-quantized.

    Args:
        models: the parts of the model in this process.
        weights_of: returns the parameters of a module that may be fake-quantized; none for most modules.
    """
    found = (Candidate(name, module, weights_of(module)) for name, module in named_modules(models))
    return [one for one in found if one.weights]


def install(found: Sequence[Candidate], unquantized: Sequence[str], in_engine: Unquantized, scheme: Scheme) -> Applied:
    """Make layers compute with fake-quantized weights. If this fails for one layer, none is changed.

    Args:
        found: the candidates.
        unquantized: names of the layers that keep their weights.
        in_engine: see `Applied`.

    Raises:
        ValueError: the scheme does not support a layer, a layer is already fake-quantized or its forward was replaced,
            or the model has no layer to quantize.
    """
    chosen = [one for one in found if one.name not in unquantized]
    for name, module, weights in chosen:
        for parameter, weight in weights.items():
            _check(f"{name}.{parameter}", module, weight, scheme)
    if not chosen:
        raise ValueError(f"no layer can be fake-quantized; skipped layers: {', '.join(unquantized) or 'none'}")
    for _, module, weights in chosen:
        module.fake_quantizers = {parameter: weight.quantize for parameter, weight in weights.items()}
        module.__class__ = _fake_quantized(type(module))
    return Applied(scheme.name, [one.name for one in chosen], list(unquantized), in_engine)


def named_modules(models: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield all modules, with names without the prefixes that wrappers add."""
    for model in models:
        for name, module in model.named_modules():
            for wrapper in WRAPPERS:
                name = name.replace(wrapper, "")
            yield name, module


def _check(name: str, module: nn.Module, weight: Weight, scheme: Scheme) -> None:
    if isinstance(module, FakeQuantized):
        raise ValueError(f"{name} is already fake-quantized: build a new model to use another scheme")
    if "forward" in vars(module):
        raise ValueError(
            f"{name}: this module's forward has been replaced, and the replacement would not use "
            "fake-quantized weights: apply fake quantization first, or disable the replacement"
        )
    if weight.columns % scheme.group:
        raise ValueError(
            f"{name}: rows of {weight.columns} elements (on one rank) are not divisible into groups of "
            f"{scheme.group}: choose a scheme with smaller groups, use fewer ranks, or ignore the layer here "
            "and in the engine"
        )


@cache
def _fake_quantized(kind: type[nn.Module]) -> type[nn.Module]:
    # It keeps its name, from which Megatron-Bridge derives the split dimension of a layer when it sends the weights.
    return type(kind.__name__, (FakeQuantized, kind), {})


@contextmanager
def without_fake_quantization(model: nn.Module) -> Iterator[None]:
    """Let the model compute with its own weights inside the block."""
    layers = [module for module in model.modules() if isinstance(module, FakeQuantized)]
    before = [layer.fake_quantizers for layer in layers]
    for layer in layers:
        layer.fake_quantizers = {}
    try:
        yield
    finally:
        for layer, quantizers in zip(layers, before, strict=True):
            layer.fake_quantizers = quantizers
