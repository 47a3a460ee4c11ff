"""What a run wants of one host: from the inventory, the recipe and the paths. The doctor judges the facts by it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from launch.inventory import Inventory, Ports
from launch.plan.imports import imports
from launch.recipes.effective import Weights, weights_of
from launch.recipes.fields import Recipe
from launch.recipes.overrides import resolve
from launch.recipes.settings import Paths
from launch.software import Import
from launch.stacks import STACK_VARIABLE


@dataclass(frozen=True)
class Wanted:
    """It goes to a host as JSON.

    Attributes:
        hosts: of the whole run.
        head: whether this is the first of them.
        address: as the inventory has it; None where this machine works alone.
        environment: variables that the inventory sets on this host.
        model: a folder, or an id on the hub.
        data: files.
        data_name: what `run.sh data` calls them.
        device_gib, host_gib: memory that the recipe says it needs.
        scheme: of the rollout.
        imports: Python modules that the run's processes import.
        sleeps: whether the engine gives its memory back between rollouts (vLLM's sleep mode).
        weights: the recipe's importance weights.
        kl: nats a token, as measured between the policies of rollout and trainer; None where it was not.
    """

    stack: str = "cpu"
    hosts: int = 1
    head: bool = True
    address: str | None = None
    nic: str = "auto"
    devices: Literal["auto"] | int | list[int] = "auto"
    ports: Mapping[str, int | str] = field(default_factory=lambda: Ports().model_dump())
    environment: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    data: list[str] = field(default_factory=list)
    data_name: str = "NAME"
    out: str | None = None
    device_gib: int | None = None
    host_gib: int | None = None
    scheme: str | None = None
    imports: list[Import] = field(default_factory=list)
    sleeps: bool = True
    weights: Weights | None = None
    kl: float | None = None

    @property
    def count(self) -> int | None:
        """How many devices; None where all are taken."""
        if isinstance(self.devices, list):
            return len(self.devices)
        return None if self.devices == "auto" else self.devices


def wanted_here(recipe: Recipe | None, paths: Paths | None) -> Wanted:
    """What a run on this machine alone wants of it."""
    stack = recipe.stack if recipe else os.environ.get(STACK_VARIABLE) or "cpu"
    devices = recipe.devices_per_node if recipe else "auto"
    return Wanted(stack=stack, devices=devices, **_of_recipe(recipe, paths))


def wanted_of(inventory: Inventory, index: int, recipe: Recipe | None, paths: Paths | None) -> Wanted:
    """What a run wants of one host of an inventory."""
    host = inventory.hosts[index]
    devices = recipe.devices_per_node if recipe and host.devices == "auto" else host.devices
    return Wanted(
        stack=inventory.stack,
        hosts=len(inventory.hosts),
        head=index == 0,
        address=host.address,
        nic=host.nic,
        devices=devices,
        ports=inventory.ports.model_dump(),
        environment={**inventory.environment, **host.environment},
        **_of_recipe(recipe, paths),
    )


def _of_recipe(recipe: Recipe | None, paths: Paths | None) -> dict[str, Any]:
    if recipe is None:
        return {}
    rollout = recipe.verl.get("actor_rollout_ref", {}).get("rollout", {})
    made: dict[str, Any] = {
        "device_gib": recipe.memory.device,
        "host_gib": recipe.memory.host,
        "scheme": recipe.rollout.scheme,
        "imports": imports(recipe, resolve(recipe, paths or Paths("", "", "")).overrides),
        "sleeps": rollout.get("free_cache_engine", True) and rollout.get("enable_sleep_mode", True),
        "model": paths.model if paths else recipe.model.hub,
        "data_name": recipe.data.name,
        "weights": weights_of(recipe),
    }
    if paths is not None:
        made["data"] = [f"{paths.data}/{file}" for file in (recipe.data.train, recipe.data.validation)]
        made["out"] = paths.out
    return made
