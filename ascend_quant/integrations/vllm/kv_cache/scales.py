"""The engine's buffers for the scales of its KV cache, which are updated in every step (see kv_cache/scales.py).

This module has those of vLLM's fp8 cache; vllm_ascend/c8.py has those of C8. vLLM's attention reads `_q_scale`,
`_k_scale` and `_v_scale`, buffers on the device, or their copies on the host. vLLM sets all of them to 1 after loading
a model, and when the memory of the cache wakes up. Captured graphs read the buffers by address.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import log

import torch
from torch import nn
from vllm.config import VllmConfig

from ascend_quant.integrations.vllm import compat
from ascend_quant.kv_cache.bounds import NORM_BEFORE_ATTENTION, Bounds
from ascend_quant.kv_cache.scales import FP8, KvScales
from ascend_quant.refit import RefitError

STATIC = ("fp8", "fp8_e4m3")  # vLLM's names of the dtype whose largest value is 448
OTHER_STATIC = ("fp8_e5m2", "fp8_inc", "nvfp4", "fp8_ds_mla")
READS_HOST_ONCE = ("FLASHINFER",)  # these backends keep the product of the first scales that they see


def follow(model: nn.Module, vllm_config: VllmConfig) -> KvScales | None:
    """Create the updater of a model's KV cache scales; None if the cache has none, such as a BF16 one.

    Raises:
        RefitError: the scales cannot be kept correct: another float8 dtype, latent attention, a drafter, attention that
            reads another layer's cache, a backend that keeps the first scales, or a vLLM that cannot recompute requests
            in flight.
    """
    asked = vllm_config.cache_config.cache_dtype
    if asked in OTHER_STATIC:
        raise RefitError(f"kv_cache_dtype={asked}: its scales would not follow weight updates; set fp8")
    buffers = Buffers(attentions(model, _is_static)) if asked in STATIC else vllm_config.quant_config.buffers_of(model)
    if buffers is None:
        return None
    _check(model, vllm_config, buffers.modules, f"kv_cache={buffers.form.cache}")
    bounds = None if buffers.form.by_channel else _bounds(vllm_config)
    scales = KvScales(buffers, bounds, _kind(vllm_config))
    for name, layer in buffers.modules.items():
        layer.process_weights_after_loading = _then_written(layer.process_weights_after_loading, scales, name)
    return scales


def attentions(model: nn.Module, wanted: Callable[[nn.Module], bool]) -> dict[str, nn.Module]:
    """Return the given layers of a model by their names from `layers.` on, without vLLM's suffix `.attn`."""
    named = ((name, module) for name, module in model.named_modules() if wanted(module))
    return {name[max(name.find("layers."), 0) :].removesuffix(".attn"): module for name, module in named}


def _is_static(module: nn.Module) -> bool:
    return isinstance(module, compat.AttentionLayer) and getattr(module, "kv_cache_dtype", None) in STATIC


def _check(model: nn.Module, vllm_config: VllmConfig, layers: Mapping[str, nn.Module], cache: str) -> None:
    if compat.MLA_LAYER is not None and any(isinstance(module, compat.MLA_LAYER) for module in model.modules()):
        raise RefitError(
            f"{cache} with latent attention (MLA): its scales would not follow weight updates; set kv_cache=auto"
        )
    if vllm_config.quant_config.options.profile is not None:
        raise RefitError(
            f"{cache} does not work with a profile, which may scale v differently from the trainer: remove the profile"
        )
    if getattr(vllm_config, "speculative_config", None) is not None:
        raise RefitError(
            f"{cache} does not work with speculative decoding: a drafter's scales would not follow weight "
            "updates; set kv_cache=auto"
        )
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        raise RefitError(
            "calculate_kv_scales freezes the scales of the first batch: remove it, weight syncs update the scales"
        )
    if not compat.begins_anew():
        raise RefitError(f"{cache}: this vLLM cannot recompute running requests when scales change; set kv_cache=auto")
    for name, layer in layers.items():
        if getattr(layer, "kv_sharing_target_layer_name", None) is not None:
            raise RefitError(
                f"{cache}: {name} shares the cache of {layer.kv_sharing_target_layer_name}, which is not "
                "supported; set kv_cache=auto"
            )
        backend = layer.get_attn_backend().get_name()
        if backend in READS_HOST_ONCE:
            raise RefitError(
                f"{cache} with backend {backend}: this backend does not update its scales; set "
                "attention_backend=FLASH_ATTN"
            )


def _bounds(vllm_config: VllmConfig) -> Bounds | None:
    """Return the bounds of q, k and v that the model's weights imply; None if unknown."""
    config = vllm_config.model_config.hf_text_config
    gain = _gain(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {})
    return None if gain is None or _kind(vllm_config) not in NORM_BEFORE_ATTENTION else Bounds(gain)


def _gain(rope: Mapping) -> float | None:
    """Return the maximum gain of a rotary embedding (RoPE); None if unknown."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "yarn":
        return rope.get("attention_factor") or max(1.0, 0.1 * log(max(rope.get("factor", 1.0), 1.0)) + 1)
    return 1.0 if kind in ("default", "linear", "dynamic", "llama3", "mrope") else None


def _kind(vllm_config: VllmConfig) -> str:
    return str(getattr(vllm_config.model_config.hf_text_config, "model_type", None))


class Buffers:
    """Scale buffers of a model's attention layers with an fp8 KV cache.

    Args:
        modules: attention layers by name.
    """

    form, channels = FP8, 1

    def __init__(self, modules: Mapping[str, nn.Module]):
        self.modules = modules

    @property
    def layers(self) -> Sequence[str]:
        return list(self.modules)

    def kept(self, values: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the scales as the buffers of device and host store them."""
        return [values.flatten()] * 2

    @torch.no_grad()
    def write(self, by_layer: Mapping[str, torch.Tensor]) -> None:
        for name, values in by_layer.items():
            layer = self.modules[name]
            for kind, value in zip(FP8.kinds, values.flatten().tolist(), strict=True):
                getattr(layer, f"_{kind}_scale").fill_(value)
                setattr(layer, f"_{kind}_scale_float", value)
                if (host := getattr(layer, f"_{kind}_scale_cpu", None)) is not None:
                    host.fill_(value)

    def read(self) -> Mapping[str, Sequence[torch.Tensor]]:
        layers = self.modules.values()
        on_device = torch.stack([getattr(layer, f"_{kind}_scale") for layer in layers for kind in FP8.kinds])
        here = on_device.cpu().view(len(layers), len(FP8.kinds))
        return {
            name: [row, torch.tensor([getattr(layer, f"_{kind}_scale_float") for kind in FP8.kinds])]
            for row, (name, layer) in zip(here, self.modules.items(), strict=True)
        }


def _then_written(original: Callable[..., None], scales: KvScales, name: str) -> Callable[..., None]:
    """Wrap a layer's `process_weights_after_loading`, which sets its scales to 1: ours are written after it."""

    @wraps(original)
    def process(*args, **kwargs) -> None:
        original(*args, **kwargs)
        scales.write(name)

    return process
