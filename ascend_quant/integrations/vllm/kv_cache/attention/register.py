"""Registration of our attention backend under vLLM's name for custom backends (CUSTOM), if that is free."""

from typing import Any

from vllm.platforms import current_platform

NAME = "CUSTOM"
PATH = "ascend_quant.integrations.vllm.kv_cache.attention.int8_cache.Int8CacheBackend"


def registry() -> Any | None:
    """Return vLLM's module with the registry of attention backends; None if it has none."""
    try:
        from vllm.v1.attention.backends import registry as found
    except ImportError:  # vLLM 0.10
        return None
    return found if hasattr(found, "register_backend") else None


def register_attention() -> None:
    """Register our attention backend in each of vLLM's processes; idempotent, and a no-op without a GPU."""
    found = registry()
    if current_platform.is_cuda() and found is not None and holder(found) is None:
        found.register_backend(getattr(found.AttentionBackendEnum, NAME), PATH)


def holder(found: Any) -> str | None:
    """Return the path of the class that is registered as CUSTOM instead of ours; None if the name is free."""
    try:
        return getattr(found.AttentionBackendEnum, NAME).get_path()
    except ValueError:
        return None


def choose(arguments: Any) -> str | None:
    """Select our backend for an engine with these arguments; return the reason if that is not possible."""
    found = registry()
    if found is None:
        return "this vLLM has no registry of attention backends"
    register_attention()
    if (other := holder(found)) != PATH:
        return f"attention backend {NAME} is already registered as {other}"
    ours = getattr(found.AttentionBackendEnum, NAME)
    given = arguments.attention_backend or getattr(arguments.attention_config, "backend", None)
    if given is not None and given not in (ours, NAME):
        return f"the engine is configured with the attention backend {getattr(given, 'name', given)}"
    if given is None:
        arguments.attention_backend = ours
    return None
