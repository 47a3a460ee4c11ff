"""Whether a sequence of the greatest length fits: the tokens of a micro-batch, the engine's steps, Ulysses' heads."""

from collections.abc import Iterator
from typing import Any

from launch.recipes.fields import Recipe


def sequence_problems(recipe: Recipe) -> Iterator[str]:
    """A line for everything that is too small for a prompt and a response, or cannot be shared out."""
    longest = recipe.rollout.max_prompt_length + recipe.rollout.max_response_length
    yield from _micro_batch(recipe, longest)
    yield from _prefill(recipe, longest)
    yield from _ulysses(recipe)


def _micro_batch(recipe: Recipe, longest: int) -> Iterator[str]:
    key, actor = "ppo_max_token_len_per_gpu", _part(recipe, "actor")
    share = recipe.training.parallel.context if recipe.training.parallel else recipe.training.sequence_parallel
    if actor.get("use_dynamic_bsz") and key in actor and actor[key] * share < longest:
        yield (
            f"verl: actor_rollout_ref.actor.{key}: {actor[key]} tokens on each of the {share} devices that share a "
            f"sequence are fewer than prompt and response, {longest}: set it to {-(-longest // share)} or more"
        )


def _prefill(recipe: Recipe, longest: int) -> Iterator[str]:
    rollout = _part(recipe, "rollout")
    tokens = rollout.get("max_num_batched_tokens", 8192)  # verl's default
    if rollout.get("enable_chunked_prefill") is False and tokens < longest:
        yield (
            f"verl: actor_rollout_ref.rollout.max_num_batched_tokens: {tokens}: without chunked prefill vLLM takes a "
            f"whole sequence at once: set it to {longest} or more"
        )


def _ulysses(recipe: Recipe) -> Iterator[str]:
    ranks, numbers = recipe.training.sequence_parallel, recipe.model.numbers
    if ranks == 1:
        return
    if recipe.backend != "fsdp2":
        yield f"training.sequence_parallel: {ranks} is FSDP's, and backend is {recipe.backend}: use parallel.context"
    if recipe.devices % ranks:
        yield f"training.sequence_parallel: {recipe.devices} devices are no multiple of {ranks}"
    if numbers is None:
        return
    heads, pairs = numbers.num_attention_heads, numbers.num_key_value_heads or numbers.num_attention_heads
    if heads % ranks or (pairs % ranks and ranks % pairs):
        yield (
            f"training.sequence_parallel: {ranks} devices cannot share {heads} attention heads and {pairs} key and "
            "value heads: choose a divisor of the first that is a multiple or a divisor of the second"
        )


def _part(recipe: Recipe, name: str) -> dict[str, Any]:
    return recipe.verl.get("actor_rollout_ref", {}).get(name, {})
