"""Caches of keys and values that the option kv_cache names, and what can be said of a CPU before an engine is asked."""

KV_CACHES = ("auto", "int8", "fp8")


def no_cache_on_cpus(cache: str) -> str | None:
    """Why vLLM's engine on this CPU has no such cache; None if it has."""
    import torch  # who asks for the names alone does without

    if cache == "int8":
        return "vLLM's attention for CPUs stores BF16 or FP8"
    if cache == "fp8" and not torch.cpu._is_avx512_supported():  # CPUs with AMX have it too
        return "this CPU has no AVX-512, which vLLM's fp8 cache needs"
    return None
