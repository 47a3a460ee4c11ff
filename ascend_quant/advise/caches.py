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
    """Why there is none of a name; what the engine refuses of a model, it refuses on any device."""
    refused = {}
    if "fp8" not in device.rates:
        refused[FP8.name] = f"{device.name} has no FP8 units, and vLLM's kernels for an fp8 cache do not compile for it"
    if device.npu:
        why = (
            f"vllm-ascend's int8 cache (C8) has not run on {device.name} yet with scales that follow a trainer: it is "
            "not estimated"
        )
        refused = dict.fromkeys((INT8.name, FP8.name), why)
    return refused | _of_the_model(shape)


def _of_the_model(shape: Shape) -> dict[str, str]:
    mixers = {layer.mixer for layer in shape.layers}
    if any(isinstance(mixer, Latent) for mixer in mixers):
        why = "the model has latent attention, which keeps no keys and values of heads"
        return dict.fromkeys((INT8.name, FP8.name), why)
    if not all(isinstance(mixer, Attention) for mixer in mixers):
        why = "the model has other layers than attention (hybrid), whose caches have pages of several sizes"
        return dict.fromkeys((INT8.name, FP8.name), why)
    if len(mixers) > 1:
        return {
            INT8.name: "the model's attention layers are not alike, and vLLM misplaces its scales where pages differ"
        }
    return {}
