"""The option kv_cache: the KV cache dtype of vLLM that it selects, set when an engine's configuration is created.

    int8  NVIDIA GPUs: int8_per_token_head, with a float32 scale per token and head in the cache, so nothing is updated
          in a sync; our own attention backend (attention/). NPUs: vllm-ascend's C8, which is not a dtype of vLLM; the
          quantization config creates it (vllm_ascend/c8.py), and from 0.30 on a dtype of vllm-ascend enables it
    fp8   fp8 (e4m3): one scale per layer for keys, values and queries
    auto  the engine's own setting

It is refused if this engine, model or device does not support it or would compute wrong results.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.platforms import current_platform

from ascend_quant.engine.options import NAME
from ascend_quant.integrations.vllm import compat, contract
from ascend_quant.integrations.vllm.kv_cache.attention.register import choose
from ascend_quant.schemes.registry import no_cache_on_cpus
from ascend_quant.schemes.scheme import FP8_CAPABILITY

logger = logging.getLogger(__name__)

DTYPES = {"int8": "int8_per_token_head", "fp8": "fp8"}
OF_ASCEND = "int8"  # vllm-ascend's own dtype, from 0.30 on
SAME = {"fp8": ("fp8", "fp8_e4m3"), "int8": ("int8_per_token_head",)}  # dtypes that the caller may also request


class KvCacheError(ValueError):
    """Raised if this engine does not support the value of the option kv_cache; the message says why."""


def configuring(original: Callable) -> Callable:
    """Wrap `EngineArgs.create_model_config`: our engines get the dtype of the option kv_cache.

    vLLM calls it first when it creates an engine's configuration. The model's configuration has the options, whether
    they are from `hf_overrides` or from the checkpoint.
    """

    def create_model_config(self, *args, **kwargs):
        config = original(self, *args, **kwargs)
        asked = asked_for(config)
        if asked is not None:
            configure(self, asked)
            check_model(asked, config)
        return config

    return create_model_config


def asked_for(model_config: Any) -> str | None:
    """Return the option kv_cache of an engine with our quantization, unless it is auto."""
    if model_config.quantization != NAME:
        return None
    for config in (model_config.hf_config, model_config.hf_text_config):
        options = getattr(config, "quantization_config", None)
        if isinstance(options, Mapping) and options.get("kv_cache") in DTYPES:  # others are refused later
            return options["kv_cache"]
    return None


def configure(arguments: Any, asked: str) -> None:
    """Put the dtype into vLLM's engine arguments.

    Raises:
        KvCacheError: this engine or device does not support it, or the caller has set another dtype.
    """
    check_engine(asked)
    given, dtype = arguments.kv_cache_dtype, _dtype(asked)
    if given not in ("auto", dtype, *(SAME[asked] if _is_dtype() else ())):
        raise KvCacheError(
            f"option kv_cache={asked}, but the engine also has kv_cache_dtype={given!r}: remove one of them"
        )
    if dtype is None:
        return
    if asked == "int8" and _is_dtype() and (reason := choose(arguments)):
        raise KvCacheError(f"option kv_cache=int8: {reason}; set kv_cache=auto")
    arguments.kv_cache_dtype = dtype
    logger.info("kv_cache %s: vLLM's %s", asked, dtype)


def _dtype(asked: str) -> str | None:
    """Return the name of the KV cache dtype; None if the quantization config creates the cache."""
    if _is_dtype():
        return DTYPES[asked]
    return OF_ASCEND if OF_ASCEND in compat.cache_dtypes() else None


def _is_dtype() -> bool:
    """Return whether the KV cache is selected by vLLM's cache dtype on this platform."""
    return current_platform.is_cuda() or current_platform.is_cpu()


def check_engine(asked: str) -> None:
    """Raise KvCacheError unless this vLLM supports the cache on this device."""
    if reason := problem_of_engine(asked):
        raise KvCacheError(f"option kv_cache={asked}: {reason}; set kv_cache=auto")


def problem_of_engine(asked: str) -> str | None:
    """Return why this vLLM does not support the cache on this device; None if it does."""
    if not _is_dtype():
        return get_quantization_config(NAME).why_no_cache(asked)
    if DTYPES[asked] not in compat.cache_dtypes():
        return f"this vLLM has no KV cache dtype {DTYPES[asked]}"
    if current_platform.is_cpu():
        return no_cache_on_cpus(asked)
    if problem := contract.problem_of("kv_cache fp8" if asked == "fp8" else "kv_cache int8 on NVIDIA"):
        return problem
    if asked == "fp8" and not current_platform.has_device_capability(FP8_CAPABILITY):
        return "GPUs before compute capability 8.9 (such as A100) do not support FP8, only kv_cache=int8"
    if asked == "int8" and os.environ.get("VLLM_KV_CACHE_LAYOUT", "NHD") != "NHD":
        return (
            f"VLLM_KV_CACHE_LAYOUT={os.environ['VLLM_KV_CACHE_LAYOUT']}: vLLM misplaces the scales in any other "
            "layout than NHD"
        )
    return None


def check_model(asked: str, model_config: Any) -> None:
    """Raise KvCacheError unless the model supports the cache."""
    if reason := problem_of_model(asked, model_config):
        raise KvCacheError(f"option kv_cache={asked}: {reason}; set kv_cache=auto")


def problem_of_model(asked: str, model_config: Any) -> str | None:
    """Return why the model does not support the cache (MLA, hybrid, unequal layers); None if it does."""
    if model_config.use_mla:
        return "latent attention (MLA) has no keys and values per head"
    if model_config.is_hybrid or model_config.is_attention_free:
        return "hybrid models (with other layers than attention) have cache pages of different sizes"
    kinds = sorted(set(getattr(model_config.hf_text_config, "layer_types", None) or ()))
    if len(kinds) > 1 and asked == "int8" and _is_dtype():
        return (
            f"the layers differ in their KV cache ({', '.join(kinds)}); vLLM misplaces the scales if page sizes differ"
        )
    return None
