"""Fake quantization of Megatron-core's layers: linear layers split by rows or columns, and grouped experts.

A scale belongs to a group of neighbours along an output channel, so neither the order of channels in a fused qkv or
gate_up nor their split matters. A row-parallel layer splits the rows (the reduction dimension K), and each rank must
have whole groups.

Layers of TransformerEngine are recognized by their classes. This was run with 2.12.0 in host memory, where they cannot
compute.
"""

import logging
import re
from collections.abc import Sequence
from functools import partial

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.moe import experts
from torch import nn

from ascend_quant.integrations.megatron.ignored import unquantized_of
from ascend_quant.qat.layers import fake_quantize_turned
from ascend_quant.qat.modules import Applied, FakeQuantized, Weight, candidates, install
from ascend_quant.qat.straight_through import fake_quantize, trainable_scheme
from ascend_quant.schemes import Scheme

logger = logging.getLogger(__name__)

GroupedMLP = getattr(experts, "GroupedMLP", ())  # experts without TransformerEngine; removed in megatron-core 0.18
FUSIONS = ("gradient_accumulation_fusion", "fuse_wgrad_accumulation")  # of Megatron-core, of TransformerEngine


def apply_fake_quantization(
    models: nn.Module | Sequence[nn.Module], scheme: str | Scheme, ignore: Sequence[str] = ()
) -> Applied:
    """Make a model compute with fake-quantized weights; its parameters do not change. See `qat/modules.py`.

    The fusion of weight gradients into main_grad is disabled in these layers, since it would look for main_grad on the
    fake-quantized weight. Their gradients go through autograd instead.

    This is a collective, since a pattern may name a layer of another pipeline stage.

    Args:
        models: the model chunks on this rank, with or without Megatron's wrappers.
        scheme: one of `qat.SCHEMES`.
        ignore: layers that keep their dtype, by the names of a checkpoint or the engine (see `schemes.layer_names`), or
            by Megatron's ("decoder.layers.0.mlp.linear_fc1"). Heads and routers keep it always.

    Raises:
        UnknownScheme, ValueError: see `install`.
        PatternError: `ignore` names a part of what the engine fuses, or nothing, on any rank.
    """
    scheme = trainable_scheme(scheme)
    models = [_unwrapped(model) for model in ([models] if isinstance(models, nn.Module) else models)]
    _refuse_fused_mlps(models)
    found = candidates(models, lambda module: _weights_of(module, scheme))
    unquantized, in_engine = unquantized_of(models, found, scheme, ignore)
    applied = install(found, unquantized, in_engine, scheme)
    _switch_fusions_off(models)
    return applied


def _refuse_fused_mlps(models: Sequence[nn.Module]) -> None:
    modules = [module for model in models for module in model.modules()]
    # grouped experts of megatron-core 0.18 have the second attribute
    if any("TEFusedMLP" in _names_of_classes(one) or getattr(one, "_with_fused_impl", False) for one in modules):
        raise ValueError(
            "TransformerEngine's fused MLP reads its layers' weights without calling their forward, so they "
            "would not be fake-quantized: set use_transformer_engine_op_fuser=False"
        )


def _unwrapped(model: nn.Module) -> nn.Module:
    """Strip DistributedDataParallel, Float16Module and the like, which add "module." to names."""
    while isinstance(getattr(model, "module", None), nn.Module):
        model = model.module
    return model


def _switch_fusions_off(models: Sequence[nn.Module]) -> None:
    fused = [
        (module, fusion)
        for model in models
        for module in model.modules()
        for fusion in FUSIONS
        if isinstance(module, FakeQuantized) and getattr(module, fusion, False)
    ]
    for module, fusion in fused:
        setattr(module, fusion, False)
    if fused:
        logger.warning("%s is disabled in %d fake-quantized layers", fused[0][1], len(fused))


def _weights_of(module: nn.Module, scheme: Scheme) -> dict[str, Weight]:
    if isinstance(module, GroupedMLP):
        return _grouped_weights(module, scheme)
    if isinstance(module, (ColumnParallelLinear, RowParallelLinear)):
        names = ["weight"] if module.weight is not None else []  # an output layer may share the embedding's
    elif _from_transformer_engine(module):
        names = [name for name, _ in module.named_parameters(recurse=False) if re.fullmatch(r"weight\d*", name)]
    else:
        return {}
    quantize = partial(fake_quantize, scheme=scheme)
    return {name: Weight(getattr(module, name).shape[-1], quantize) for name in names}


def _grouped_weights(module: nn.Module, scheme: Scheme) -> dict[str, Weight]:
    """Return weight1 and weight2, each a stack of the experts' (input, output) in one matrix."""
    experts = module.num_local_experts

    def quantize(w: torch.Tensor, columns: int) -> torch.Tensor:
        return fake_quantize_turned(w.view(experts, columns, -1), scheme).view(w.shape)

    inputs = {"weight1": module.config.hidden_size, "weight2": module.weight2.shape[0] // experts}
    return {name: Weight(columns, partial(quantize, columns=columns)) for name, columns in inputs.items()}


def _from_transformer_engine(module: nn.Module) -> bool:
    """Return whether a module is one of TransformerEngine's linear layers: Linear, LayerNormLinear, GroupedLinear."""
    return any(
        kind.__module__.startswith("transformer_engine.") and kind.__name__.endswith("Linear")
        for kind in type(module).__mro__
    )


def _names_of_classes(module: nn.Module) -> str:
    return " ".join(kind.__name__ for kind in type(module).__mro__)
