"""A recipe on fewer devices than it was written for: which of its fields change, for `train --set`."""

import json

from launch.recipes import Recipe

TOKENS = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"


def fields_for(recipe: Recipe, devices: int, prompt: int, answer: int, tensor_parallel: int = 1) -> dict[str, object]:
    """On one node: each degree of parallelism as far as it goes, the scheme and the batch as they are.

    Args:
        prompt, answer: tokens at most; where fewer devices share a sequence than before, it still fits.
        tensor_parallel: devices of an engine; the experts of a recipe that deals them out are dealt to these.
    """
    fields: dict[str, object] = {
        "nodes": 1,
        "devices_per_node": devices,
        "rollout.max_prompt_length": prompt,
        "rollout.max_response_length": answer,
        "rollout.tensor_parallel": tensor_parallel,
        "rollout.expert_parallel": tensor_parallel if recipe.rollout.expert_parallel > 1 else 1,
    }
    shared_by = min(recipe.training.sequence_parallel, devices)
    if recipe.training.sequence_parallel > 1:
        fields["training.sequence_parallel"] = shared_by
    tokens = recipe.verl.get("actor_rollout_ref", {}).get("actor", {}).get("ppo_max_token_len_per_gpu")
    if tokens is not None:
        fields[f"verl.{TOKENS}"] = max(tokens, -(-(prompt + answer) // shared_by))
    if recipe.training.parallel is not None:
        parallel = recipe.training.parallel
        degrees = {"tensor": min(parallel.tensor, devices), "expert": min(parallel.expert, devices)}
        degrees |= {"pipeline": 1, "context": 1, "last_stage_layers": None}
        fields |= {f"training.parallel.{name}": degree for name, degree in degrees.items()}
    return fields


def as_options(fields: dict[str, object]) -> list[str]:
    """The fields as `train` takes them; every value is YAML, and JSON is that too."""
    return [word for key, value in fields.items() for word in ("--set", f"{key}={json.dumps(value)}")]
