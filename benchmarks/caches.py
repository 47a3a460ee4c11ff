"""The KV caches that engines are compared with, by the name in a report.

auto        BF16; on H100 and H200 by FlashAttention 3
int8, fp8   this project's
int8-vllm   vLLM's own, int8 with a scale a token and head
fp8-vllm    vLLM's own, fp8 by FlashAttention 3, its scales 1
"""

from typing import Any

CACHES: dict[str, dict[str, Any]] = {
    "auto": {},
    "int8": {"kv_cache_dtype": "int8_per_token_head"},
    "fp8": {"kv_cache_dtype": "fp8"},
    "int8-vllm": {"kv_cache_dtype": "int8_per_token_head"},
    "fp8-vllm": {"kv_cache_dtype": "fp8"},
}
OURS = ("int8", "fp8")
ON_CPUS = ("auto", "fp8", "fp8-vllm")  # vLLM's attention there has no int8 cache
BF16, CODE, SCALE = 2, 1, 4  # bytes


def head_bytes(cache: str, elements: int) -> int:
    """Of one token's key, or value, of one head."""
    if cache == "auto":
        return BF16 * elements
    return CODE * elements + (SCALE if cache.startswith("int8") else 0)


def capacity(cache_config: Any) -> int:
    """Tokens that an engine's cache holds."""
    return cache_config.num_gpu_blocks * cache_config.block_size


def options(scheme: dict[str, Any], cache: str) -> dict[str, Any]:
    """vLLM's options for a scheme's with that cache."""
    return {**scheme, **CACHES[cache]}
