"""What a run requires of a host, from a recipe and an inventory."""

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ascend_quant.recipes.keys import ROLLOUT
from launch.cluster.inventory import Inventory, Ports
from launch.plan import Inputs
from launch.plan.inputs import inputs
from launch.recipes.fields import Recipe
from launch.recipes.paths import Paths
from launch.recipes.stacks import STACK_VARIABLE, pins

EPHEMERAL = 50000


@dataclass(frozen=True)
class Wanted(Inputs):
    """A run's requirements for one host; sent there as JSON."""

    stack: str = "cpu"
    hosts: int = 1  # in the whole run
    head: bool = True  # whether this is the first host
    address: str | None = None  # as in the inventory; None if the run uses only this machine
    nic: str = "auto"
    devices: Literal["auto"] | int | list[int] = "auto"
    ports: Mapping[str, int | str] = field(default_factory=lambda: Ports().model_dump())  # none: Ray runs already
    environment: Mapping[str, str] = field(default_factory=dict[str, str])  # variables that the user sets on this host
    device_gib: int | None = None  # required by the recipe
    host_gib: int | None = None
    targets: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])  # (host, port) reached from here
    sleeps: bool = True  # whether the engine releases its memory between rollouts (vLLM's sleep mode)


def wanted_here(recipe: Recipe | None, paths: Paths | None) -> Wanted:
    """Return the requirements of a run on this machine alone; without a recipe, those of the environment's stack."""
    if recipe is None or paths is None:
        return Wanted(stack=os.environ.get(STACK_VARIABLE) or "cpu")
    return Wanted(
        stack=recipe.stack,
        devices=recipe.devices_per_node,
        device_gib=recipe.memory.device,
        host_gib=recipe.memory.host,
        sleeps=all(recipe.setting(f"{ROLLOUT}.{name}", True) for name in ("free_cache_engine", "enable_sleep_mode")),
        **vars(inputs(recipe, paths)),
    )


def wanted_of(inventory: Inventory, index: int, recipe: Recipe | None, paths: Paths | None) -> Wanted:
    """Return a run's requirements for one host of an inventory."""
    host, alone = inventory.hosts[index], wanted_here(recipe, paths)
    return replace(
        alone,
        stack=inventory.stack,
        hosts=len(inventory.hosts),
        head=index == 0,
        address=host.address,
        nic=host.nic,
        devices=alone.devices if host.devices == "auto" else host.devices,
        ports=inventory.ports.model_dump(),
        environment={**inventory.environment, **host.environment},
        saving=None if index else alone.saving,  # rank 0 of the trainer writes the checkpoints
        targets=targets(inventory, index),
    )


def targets(inventory: Inventory, index: int) -> list[tuple[str, int]]:
    """Return where a host tries to connect to the others: a port of Ray, one of HCCL on NPUs, and an ephemeral port.

    The latter is included because torch.distributed, TransferQueue and vLLM use ephemeral ports.
    """
    ranges = [inventory.ports.workers]
    ranges += [inventory.ports.hccl_host] if pins(inventory.stack).devices == "npu" else []
    ports = [EPHEMERAL, *(int(one.partition("-")[0]) for one in ranges if one != "auto")]
    others = [host.address for at, host in enumerate(inventory.hosts) if at != index]
    head = [inventory.ports.ray, inventory.ports.dashboard] if index else []
    return [*itertools.product(others, ports), *((inventory.hosts[0].address, port) for port in head)]
