"""Reasons why vllm-ascend's int8 KV cache (C8) is not supported, by version, device and layer."""

from typing import Any

from torch import nn

from ascend_quant.integrations.vllm_ascend import compat

CHANNELS = 32  # per head, in the cache's layout: (blocks, heads, D / 32, block, 32)
DEVICES = ("A2", "A3")


def why_engine_has_none(asked: str) -> str | None:
    """Return why the option kv_cache is not supported here, before anything is built; None if it is."""
    if asked != "int8":
        return f"{asked} is not supported on NPUs; int8 is, through vllm-ascend's C8"
    if compat.C8Scheme is None:
        return "this vllm-ascend has no int8 KV cache (C8); 0.23 has"
    kind = compat.device_type()
    return None if kind in DEVICES else f"C8 is supported on Atlas {' and '.join(DEVICES)}, not on {kind}"


def why_layer_has_none(layer: nn.Module, vllm_config: Any) -> str | None:
    """Return why an attention layer, as vLLM has built it, does not support C8; None if it does."""
    impl, cache = layer.impl, vllm_config.cache_config
    if type(impl) is not compat.attention_class():
        return f"{type(impl).__name__} (context parallel, perhaps) does not support C8"
    if not impl.enable_c8_quant:  # 0.30 requires its own dtype, which `kv_cache.configure` sets
        return "this vllm-ascend captures graphs without C8's scales unless kv_cache_dtype is int8"
    if layer.attn_type != "decoder":
        return f"{layer.attn_type} attention does not support C8"
    if layer.sliding_window is not None:
        return f"C8 ignores sliding windows, but this layer has one of {layer.sliding_window}"
    unserved = {
        "sinks": impl.sinks is not None,
        "alibi": impl.alibi_slopes is not None,
        "Hamming-sparse attention": getattr(impl, "enable_hamming_sparse", False),  # removed in 0.30
    }
    if found := [name for name, there in unserved.items() if there]:
        return f"C8 does not support {' and '.join(found)}, which this layer uses"
    if layer.head_size % CHANNELS:
        return f"C8 needs a head size that is a multiple of {CHANNELS}, not {layer.head_size}"
    if cache.block_size is not None and cache.block_size % CHANNELS:
        return f"C8 needs blocks of a multiple of {CHANNELS} tokens, not of {cache.block_size}"
    if vllm_config.kv_transfer_config is not None:
        return "C8 does not support a cache transfer to another engine (kv_transfer_config)"
    return None
