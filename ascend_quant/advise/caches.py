"""Which caches of keys and values a device can have under this plugin, and why not the others."""

from ascend_quant.advise.devices import Device
from ascend_quant.advise.layers import BF16

FP8 = 1  # byte an element


def caches(device: Device) -> tuple[int, ...]:
    """Bytes of an element, BF16 first."""
    return (BF16, FP8) if "fp8" in device.rates else (BF16,)


def no_quantized_cache(device: Device) -> str | None:
    """Why there is none, or None."""
    if FP8 in caches(device):
        return None
    if device.npu:
        return (
            f"{device.name} has no FP8, and vllm-ascend's int8 cache (C8) computes its scales once, from a checkpoint: "
            "they would not follow a refit, so this plugin does not serve it"
        )
    return f"{device.name} has no FP8 units, which vLLM's FlashAttention needs for an fp8 cache"
