"""A recipe on fewer devices than it was written for: which of its fields change, for `train --set`."""

import json

from launch.recipes import Recipe


def fields_for(recipe: Recipe, devices: int, tensor_parallel: int = 1) -> dict[str, object]:
    """On one node: each degree of parallelism as far as it goes, the scheme and the batch as they are.

    Args:
        tensor_parallel: devices of an engine; the experts of a recipe that deals them out are dealt to these.
    """
    fields: dict[str, object] = {
        "nodes": 1,
        "devices_per_node": devices,
        "rollout.tensor_parallel": tensor_parallel,
        "rollout.expert_parallel": tensor_parallel if recipe.rollout.expert_parallel > 1 else 1,
    }
    if recipe.training.sequence_parallel > 1:
        fields["training.sequence_parallel"] = min(recipe.training.sequence_parallel, devices)
    if recipe.training.parallel is not None:
        parallel = recipe.training.parallel
        degrees = {"tensor": min(parallel.tensor, devices), "expert": min(parallel.expert, devices)}
        degrees |= {"pipeline": 1, "context": 1, "last_stage_layers": None}
        fields |= {f"training.parallel.{name}": degree for name, degree in degrees.items()}
    return fields


def as_options(fields: dict[str, object]) -> list[str]:
    """The fields as `train` takes them; every value is YAML, and JSON is that too."""
    return [word for key, value in fields.items() for word in ("--set", f"{key}={json.dumps(value)}")]
