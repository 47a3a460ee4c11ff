"""Selection of the Megatron layers that are not quantized: those that the engine ignores by the same `ignore` list.

A rank has only some layers of a model, so all ranks exchange their matches.
"""

import re
from collections.abc import Iterator, Sequence

import torch.distributed as dist
from torch import nn

from ascend_quant.qat.modules import Candidate
from ascend_quant.schemes import Scheme
from ascend_quant.schemes.layer_names import (
    Ignored,
    Layer,
    PatternError,
    Unquantized,
    from_megatron,
    keeps_its_dtype,
    layer_of,
    layers_of,
)

DECODER_LAYER = re.compile(r"(.*\.)?decoder\.layers\.\d+")


def unquantized_of(
    models: Sequence[nn.Module], found: Sequence[Candidate], scheme: Scheme, ignore: Sequence[str]
) -> tuple[list[str], Unquantized]:
    """Return the candidates that keep their dtype, by Megatron's names, and the engine layers of all ranks that must.

    Layers outside of decoder layers (multi-token prediction) have no name in the engine, and use Megatron's.

    Raises:
        PatternError: `ignore` names a part of what the engine fuses, or nothing, on any rank.
    """
    renamed, ignored, error = dict(_renamed(models)), Ignored(ignore), None
    try:
        names = _ignored(found, renamed, dict(_stacks(models)), ignored)
    except PatternError as refused:  # raised only after the exchange with the other ranks
        names, error = set(), str(refused)
    for name in (name for others in renamed.values() for name in others):
        ignored.meet(name)
    unquantized = [one.name for one in found if one.name in names or keeps_its_dtype(one.name)]
    here = [other for one in found if one.name in names for other in renamed.get(one.module, [])]
    errors, unused, everywhere = zip(*_gathered((error, ignored.unused(), here)), strict=True)
    if refused := [one for one in errors if one]:
        raise PatternError(refused[0])
    ignored.check_used("the model", unused)
    return unquantized, Unquantized.of(scheme.name, (name for names in everywhere for name in names))


def _ignored(
    found: Sequence[Candidate], renamed: dict[nn.Module, list[str]], stacks: dict[str, int], ignored: Ignored
) -> set[str]:
    """Return the Megatron names of ignored candidates; a layer is ignored by its own names or all of these."""
    layers = layers_of((name for names in renamed.values() for name in names), stacks)
    members: dict[Layer, list[str]] = {}
    for one in found:
        for layer in {layers[name] for name in renamed.get(one.module, [])} or {layer_of(one.name)}:
            members.setdefault(layer, []).append(one.name)
    names = set()
    for layer, held in members.items():
        meant = [name for name in held if ignored.meet(name)]
        if ignored.covers(layer) or len(meant) == len(held):
            names.update(held)
        elif meant:
            raise PatternError(
                f"ignore={list(ignored.patterns)} matches {meant} of {held}, which the engine fuses into one "
                f"layer, {layer.name}: ignore all of it or none"
            )
    return names


def _stacks(models: Sequence[nn.Module]) -> Iterator[tuple[str, int]]:
    """Yield the number of experts of the model's layers, over all ranks, by the engine's names."""
    for layer in _decoder_layers(models):
        if layer.config.num_moe_experts:
            yield from ((name, layer.config.num_moe_experts) for name in from_megatron("mlp.experts", _number(layer)))


def _renamed(models: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, list[str]]]:
    """Yield the modules of decoder layers that have checkpoint names, and the model's embeddings and heads."""
    for layer in _decoder_layers(models):
        for part, module in layer.named_modules():
            if names := from_megatron(part, _number(layer)):
                yield module, names
    for model in models:
        for name, module in model.named_modules():
            if name.endswith("word_embeddings"):
                yield module, ["model.embed_tokens"]


def _decoder_layers(models: Sequence[nn.Module]) -> Iterator[nn.Module]:
    for model in models:
        yield from (module for name, module in model.named_modules() if DECODER_LAYER.fullmatch(name))


def _number(layer: nn.Module) -> int:
    """Return a layer's index in the whole model, from 0."""
    return layer.layer_number - 1


def _gathered(found: tuple) -> list[tuple]:
    """Gather an object from all ranks."""
    if not dist.is_initialized():
        return [found]
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, found)
    return everywhere
