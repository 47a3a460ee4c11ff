"""The KV caches that engines are compared with, by the name in a report.

auto        BF16; on H100 and H200 by FlashAttention 3
int8, fp8   this project's
int8-vllm   vLLM's own, int8 with a scale a token and head
fp8-vllm    vLLM's own, fp8 by FlashAttention 3, its scales 1
"""

from typing import Any

CACHES: dict[str, dict[str, Any]] = {
    "auto": {},
    "int8": {"kv_cache": "int8"},  # this plugin's option, beside the scheme's
    "fp8": {"kv_cache": "fp8"},
    "int8-vllm": {"kv_cache_dtype": "int8_per_token_head"},
    "fp8-vllm": {"kv_cache_dtype": "fp8"},
}
OURS = ("int8", "fp8")
ON_CPUS = ("auto", "fp8", "fp8-vllm")  # vLLM's attention there has no int8 cache
BF16, CODE, SCALE = 2, 1, 4  # bytes
BF16_OF_OURS = {"quant_method": "ascend_quant", "scheme": "bf16"}


def head_bytes(cache: str, elements: int) -> int:
    """Of one token's key, or value, of one head."""
    if cache == "auto":
        return BF16 * elements
    return CODE * elements + (SCALE if cache.startswith("int8") else 0)


def capacity(cache_config: Any) -> int:
    """Tokens that an engine's cache holds."""
    return cache_config.num_gpu_blocks * cache_config.block_size


def options(scheme: dict[str, Any], cache: str) -> dict[str, Any]:
    """vLLM's options for those of a scheme, with that cache.

    Raises:
        ValueError: one of our caches for an engine that is not ours.
    """
    if cache not in OURS:
        return {**scheme, **CACHES[cache]}
    if not scheme:  # BF16, which this plugin serves too
        scheme = {"quantization": "ascend_quant", "hf_overrides": {"quantization_config": BF16_OF_OURS}}
    if scheme["quantization"] != "ascend_quant":
        raise ValueError(f"the cache {cache} is this plugin's, and {scheme['quantization']} is not: take {cache}-vllm")
    ours = scheme["hf_overrides"]["quantization_config"] | CACHES[cache]
    return scheme | {"hf_overrides": {"quantization_config": ours}}
