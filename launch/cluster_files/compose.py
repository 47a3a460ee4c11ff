"""A recipe as a compose file for one host: a service of docker/compose.yaml with the recipe's command and variables."""

from typing import Any

from launch import ROOT, LaunchError
from launch.cluster_files.task import image
from launch.environment.variables import secret
from launch.ray_jobs.plan import environment
from launch.recipes import Recipe

FILE = ROOT / "docker" / "compose.yaml"
SERVICES = {"cpu": "cpu", "cuda13": "cuda"}


def compose(recipe: Recipe, model: str | None) -> dict[str, Any]:
    """Return the compose file; data and output are in the folders that docker/compose.yaml mounts.

    Raises:
        LaunchError: the recipe needs several hosts.
    """
    if recipe.nodes > 1:
        raise LaunchError(
            f"{recipe.name} needs {recipe.nodes} hosts, Compose has one: use --set trainer.nnodes=1, or train"
        )
    variables = environment(recipe, {})
    service = {
        "extends": {"file": str(FILE), "service": SERVICES.get(recipe.stack) or f"ascend-{image(recipe)[-2:]}"},
        "command": ["train", recipe.name, *(["--model", model] if model else [])],
        "environment": {name: None if secret(name, value) else value for name, value in variables.items()},
    }
    if recipe.stack not in SERVICES:
        service["image"] = f"${{REPOSITORY:-ascend-quant}}:{image(recipe)}"
    return {"name": recipe.name.replace(".", "-"), "services": {"train": service}}
