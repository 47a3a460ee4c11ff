"""What a run wants of each host, from its recipe, paths and inventory; the doctor and every host check it."""

import itertools
import os
from dataclasses import replace
from math import ceil

from ascend_quant.processes.environment import STACK_VARIABLE
from ascend_quant.recipes.keys import ACTOR, ROLLOUT
from launch import LaunchError
from launch.cluster.inventory import Inventory
from launch.plan import Saving, Wanted
from launch.plan.imports import imports
from launch.recipes import Paths, Recipe
from launch.recipes.paths import data_files
from launch.recipes.stacks import pins

EPHEMERAL = 50000
SAVE = "trainer.save_freq"  # verl saves no checkpoints by default
REWARDS = (
    "reward.custom_reward_function.path",
    "custom_reward_function.path",
)  # if both are given, verl uses the second
PACKAGE = "pkg://"  # before the name of a module that every host has installed
KEEP = "trainer.max_actor_ckpt_to_keep"  # verl keeps all checkpoints by default
STEPS = "trainer.total_training_steps"  # by default, the number of steps in the epochs
EPOCHS = ("trainer.total_epochs", 30)
BATCH = ("data.train_batch_size", 1024)
CONTENTS = f"{ACTOR}.checkpoint.save_contents"
FLOAT32, BF16 = 4, 2


def wanted_here(recipe: Recipe | None, paths: Paths | None) -> Wanted:
    """Return the requirements of a run on this machine alone; without a recipe, those of the environment's stack."""
    if recipe is None or paths is None:
        return Wanted(stack=os.environ.get(STACK_VARIABLE) or "cpu")
    prompt = recipe.setting("data.prompt_key", "prompt")
    read = [prompt, recipe.setting("data.reward_fn_key", "data_source"), "reward_model"]
    is_verls = recipe.setting("data.custom_cls.path") is None  # a user's own data set class reads what it wants
    return Wanted(
        stack=recipe.stack,
        devices=recipe.devices_per_node,
        device_gib=recipe.memory.device,
        host_gib=recipe.memory.host,
        sleeps=all(recipe.setting(f"{ROLLOUT}.{name}", True) for name in ("free_cache_engine", "enable_sleep_mode")),
        model=paths.model,
        tensor_parallel=recipe.rollout.tensor_parallel,
        needs=needs(recipe, paths),
        columns=read if is_verls else [],
        prompt=prompt,
        least_rows=least_rows(recipe, paths) if is_verls else {},
        imports=imports(recipe),
        out=paths.out,
        saving=saving(recipe, paths),
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


def needs(recipe: Recipe, paths: Paths) -> list[str]:
    """List the paths that must exist on each host. A model that is not a path is a hub id.

    Raises:
        LaunchError: the path of the reward file is relative, and the job's working directory has no such file.
    """
    found = [paths.model, *dict.fromkeys(data_files(recipe, paths))]
    rewards = {name: recipe.setting(name) for name in REWARDS}
    for name, reward in rewards.items():
        if reward is None or reward in recipe.files or reward.startswith(PACKAGE):
            continue
        if not reward.startswith("/"):
            raise LaunchError(
                f"{name}={reward}: the job's folder does not contain this file: give an absolute path on the hosts"
            )
        found.append(reward)
    return [path for path in found if path.startswith("/")]


def least_rows(recipe: Recipe, paths: Paths) -> dict[str, int]:
    """Return the minimum number of rows of the training file, by its path.

    verl drops incomplete batches: with fewer rows than a batch, its data loader is empty, and with fewer than the steps
    need, the run ends early as if it were complete.
    """
    batch = recipe.count(*BATCH)
    if batch is None:  # which verl refuses
        return {}
    steps, epochs = recipe.count(STEPS) or 1, recipe.count(*EPOCHS) or EPOCHS[1]
    return {data_files(recipe, paths)[0]: batch * ceil(steps / epochs)}


def saving(recipe: Recipe, paths: Paths) -> Saving | None:
    """Return the checkpoints of a run; None if it writes none, or if a value is not a number, which verl rejects."""
    every, batch = recipe.count(SAVE), recipe.count(*BATCH)
    if every is None or batch is None:
        return None
    return Saving(
        train=data_files(recipe, paths)[0],
        every=every,
        keep=recipe.count(KEEP),
        steps=recipe.count(STEPS),
        epochs=recipe.count(*EPOCHS) or EPOCHS[1],
        batch=batch,
        parameter_bytes=parameter_bytes(recipe),
    )


def parameter_bytes(recipe: Recipe) -> int:
    """Return the bytes per parameter in a checkpoint.

    FSDP saves the weights and Adam's two moments in float32. Megatron saves the weights in BF16, and with the optimizer
    their float32 copies and the two moments.
    """
    megatron = recipe.backend == "megatron"
    model, optimizer = (BF16, 3 * FLOAT32) if megatron else (FLOAT32, 2 * FLOAT32)
    parts = {"hf_model": BF16, "optimizer": optimizer, "model": model}
    return sum(parts.get(name, 0) for name in recipe.setting(CONTENTS, ["model", "optimizer", "extra"]))
