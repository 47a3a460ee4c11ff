"""What a run wants of each host, from its recipe, paths and inventory; the doctor and every host check it."""

import itertools
import os
from dataclasses import replace

from ascend_quant.recipes.keys import ROLLOUT
from launch.cluster.inventory import Inventory
from launch.plan import Wanted
from launch.plan import job as jobs
from launch.plan.imports import imports
from launch.recipes import Paths, Recipe
from launch.recipes.stacks import STACK_VARIABLE, pins

EPHEMERAL = 50000


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
        model=paths.model,
        tensor_parallel=recipe.rollout.tensor_parallel,
        needs=jobs.needs(recipe, paths),
        columns=jobs.columns(recipe),
        prompt=jobs.prompt(recipe),
        least_rows=jobs.least_rows(recipe, paths),
        imports=imports(recipe),
        out=paths.out,
        saving=jobs.saving(recipe, paths),
    )


def wanted_of(inventory: Inventory, index: int, recipe: Recipe | None, paths: Paths | None) -> Wanted:
    """Return a run's requirements for one host of an inventory."""
    host, alone = inventory.hosts[index], wanted_here(recipe, paths)
    return replace(
        alone,
        stack=inventory.stack,
        role="worker" if index else "head",
        hosts=len(inventory.hosts),
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
