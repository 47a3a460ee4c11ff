"""Which caches of keys and values an engine can have under this plugin, and why not the others."""

from ascend_quant.advise.devices import Device
from ascend_quant.advise.layers import AUTO, FP8, INT8, Attention, Cache, Latent
from ascend_quant.advise.serving import Serving
from ascend_quant.advise.shapes import Shape

CACHES = {cache.name: cache for cache in (AUTO, INT8, FP8)}
OF_THE_PLUGIN = ("bf16", "int8")  # columns whose engines have this plugin's int8 cache


def caches(serving: Serving, device: Device, shape: Shape) -> tuple[Cache, ...]:
    """Those of one column, BF16 first."""
    refused = no_quantized_cache(device, shape)
    return tuple(
        cache
        for cache in CACHES.values()
        if cache.name not in refused and (cache != INT8 or serving.name in OF_THE_PLUGIN)
    )


def no_quantized_cache(device: Device, shape: Shape) -> dict[str, str]:
    """Why there is none of a name."""
    why = _of_the_model(shape)
    if why is None and device.npu:
        why = (
            f"vllm-ascend's int8 cache (C8) on {device.name} computes its scales once, from a checkpoint: they would "
            "not follow a refit, so it is not estimated"
        )
    if why is not None:
        return dict.fromkeys((INT8.name, FP8.name), why)
    if "fp8" not in device.rates:
        return {FP8.name: f"{device.name} has no FP8 units, and vLLM's kernels for an fp8 cache do not compile for it"}
    return {}


def _of_the_model(shape: Shape) -> str | None:
    """What the engine refuses on any device."""
    mixers = {layer.mixer for layer in shape.layers}
    if any(isinstance(mixer, Latent) for mixer in mixers):
        return "the model has latent attention, one latent for all heads, which keeps BF16"
    if not all(isinstance(mixer, Attention) for mixer in mixers):
        return "the model has layers of linear attention, whose caches vLLM lays out together with the others'"
    if len(mixers) > 1:
        return "the model's attention layers are not alike, and vLLM lays such caches out in pages of another kind"
    return None
