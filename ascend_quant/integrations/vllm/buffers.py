"""The resident buffers of a layer: quantized weight and scales, registered so that vLLM's weight loaders find them."""

import torch
from torch import nn
from vllm.model_executor.utils import set_weight_attrs

from ascend_quant.engine import layout
from ascend_quant.kernels import kernels_for
from ascend_quant.refit import RefitError
from ascend_quant.schemes import Scheme


def register(layer: nn.Module, name: str, scheme: Scheme, shape: tuple[int, ...], attributes: dict) -> str:
    """Register the parameters `name` and `name`_scale for the refit; return the name of the scale that GEMMs read.

    Args:
        shape: (.., N, K) on this rank.
        attributes: attributes for vLLM's weight loaders.

    Raises:
        RefitError: the scheme or the device's kernels do not support the shape.
    """
    if scheme.group and shape[-1] % scheme.group:
        raise RefitError(
            f"{name}: {shape[-1]} input channels a rank are not divisible into groups of {scheme.group}; "
            "choose int4_g32 or another tensor parallel size, or keep the layer in BF16 with `ignore`"
        )
    try:
        storage = kernels_for(torch.get_default_device()).storage(scheme, shape)
    except ValueError as error:
        raise RefitError(f"{name}: {error}") from error
    layer.register_parameter(f"{name}_scale", nn.Parameter(storage.scale, requires_grad=False))
    if storage.layout is None:
        layer.register_parameter(name, nn.Parameter(storage.codes, requires_grad=False))
        set_weight_attrs(getattr(layer, name), attributes)
    else:
        stand_in = layout.register(layer, name, shape, storage.layout, storage.scale, scheme=scheme)
        set_weight_attrs(stand_in, attributes)
    if storage.served_scale is storage.scale:
        return f"{name}_scale"
    layer.register_buffer(f"{name}_served_scale", storage.served_scale, persistent=False)
    return f"{name}_served_scale"
