"""Whether the engines of this machine have a quantized cache for a model; asked before any engine starts."""

from typing import Any

import torch

from ascend_quant.schemes.caches import no_cache_on_cpus
from ascend_quant.schemes.constants import FP8_CAPABILITY


def no_cache_for(model_config: Any, cache: str) -> str | None:
    """Why no engine has that cache for this model; None if nothing speaks against it.

    Args:
        model_config: transformers' configuration.
    """
    text = model_config.get_text_config()
    if getattr(text, "kv_lora_rank", None):
        return "the model has latent attention, which keeps no keys and values of heads"
    kinds = sorted(set(getattr(text, "layer_types", None) or ()))
    if any("attention" not in kind or "linear" in kind for kind in kinds):
        return f"the model has other layers than attention ({', '.join(kinds)}), with pages of several sizes"
    if len(kinds) > 1 and cache == "int8":
        return f"its layers are not alike ({', '.join(kinds)}), and vLLM misplaces its scales where pages differ"
    return None


def no_engine_with(cache: str) -> str | None:
    """Why the engine of this machine has no such cache; None if it has."""
    if torch.cuda.is_available():
        capability = torch.cuda.get_device_capability()
        if cache == "fp8" and capability < FP8_CAPABILITY:
            return f"{torch.cuda.get_device_name()} (sm{capability[0]}{capability[1]}) has no FP8 units"
        return None
    if hasattr(torch, "npu") and torch.npu.is_available():
        without = "an int8 cache (C8) has its scales from a trainer, and there is none here"
        return {"int8": without, "fp8": "NPUs have no FP8 units"}[cache]
    return no_cache_on_cpus(cache)
