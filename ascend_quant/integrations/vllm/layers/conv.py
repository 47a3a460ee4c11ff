"""The convolution of gated delta nets (Qwen3-Next, Qwen3.5), which vLLM's kernels read packed on some CPUs.

vLLM packs the weight once, after the first load, and discards the original. Here the resident parameter keeps its
layout, and the kernels get a packed copy, which every refit updates in place.
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import nn

from ascend_quant.integrations.vllm.compat import DELTA_NET_LAYER, convolution_as_read
from ascend_quant.refit import RefitError


def follow(model: nn.Module) -> Callable[[], None]:
    """Give the layers' kernels packed weights if vLLM packs them; return the object that updates them.

    Raises:
        RefitError: vLLM's own packing does not support the shape.
    """
    if DELTA_NET_LAYER is None:
        return lambda: None
    layers = {name: module for name, module in model.named_modules() if isinstance(module, DELTA_NET_LAYER)}
    pairs = [pair for name, layer in layers.items() if (pair := _packed(name, layer))]

    def refresh() -> None:
        for weight, packed in pairs:
            packed.copy_(convolution_as_read(weight))

    return refresh


def _packed(name: str, layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Pack a layer's weight (channels, 1, width) for its kernels; return both, or None if it is not packed."""
    conv = layer.conv1d
    weight = conv.weight.data
    try:
        packed = convolution_as_read(weight)
    except RuntimeError as error:
        raise RefitError(
            f"{name}.conv1d.weight of shape {tuple(weight.shape)}: vLLM cannot pack this weight for this CPU: {error}"
        ) from error
    if packed.shape == weight.shape:
        return None
    # Python finds this attribute before the submodule, which keeps the parameter for loaders and refits
    vars(layer)["conv1d"] = SimpleNamespace(
        weight=packed, bias=conv.bias, _cpu_unpacked_conv_weight=weight.view(weight.shape[0], weight.shape[2])
    )
    return weight, packed
