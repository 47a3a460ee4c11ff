"""`demo --kv-cache`: which arms' engines have a quantized KV cache, and what verl is told of it."""

from typing import Any

from launch.demo.recipe import Choices, scheme_of

OPTION = "actor_rollout_ref.rollout.engine_kwargs.vllm.hf_overrides.quantization_config.kv_cache"


def cache_of(choices: Choices, arm: str) -> str:
    """That of an arm: with BF16 weights it is BF16, as what the others are compared with, unless no other is there."""
    alone = all(scheme_of(each) == "bf16" for each in choices.arms)
    return choices.kv_cache if scheme_of(arm) != "bf16" or alone else "auto"


def settings_of(choices: Choices, arm: str) -> dict[str, Any]:
    """The keys of verl that give an arm's engine its cache."""
    cache = cache_of(choices, arm)
    return {} if cache == "auto" else {OPTION: cache}


def named(arm: dict[str, Any]) -> str:
    """An arm of the report with its cache, for people."""
    return arm["name"] if arm["kv_cache"] == "auto" else f"{arm['name']}, {arm['kv_cache']} cache"
