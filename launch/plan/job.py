"""The job of a run, as the head submits it to Ray: its command, where its files are on the hosts, what it saves.

The command is verl with the recipe's overrides, then the user's, which win. Paths are those that its processes see on
the hosts. Of its checkpoints it says how often, how many and how large.
"""

import os
from collections.abc import Mapping, Sequence

from launch.errors import LaunchError
from launch.inventory import Inventory, Ports
from launch.plan import Job, Layer, Saving
from launch.recipes import Paths, Recipe, paths_of
from launch.recipes.overrides import Resolved
from launch.recipes.settings import ENVIRONMENT
from launch.recipes.verl import ACTOR
from launch.root import ROOT

EAGER = "actor_rollout_ref.rollout.enforce_eager"  # false unless it is given
SAVE = "trainer.save_freq"  # never, unless it is given
RESUME = "trainer.resume_mode"
REWARD = "reward.custom_reward_function.path"
KEEP = "trainer.max_actor_ckpt_to_keep"  # all, unless it is given
STEPS = "trainer.total_training_steps"  # as many as the epochs have, unless it is given
EPOCHS = ("trainer.total_epochs", 30)
CONTENTS = f"{ACTOR}.checkpoint.save_contents"
FLOAT32, BF16 = 4, 2


def job(resolved: Resolved, extra: Sequence[str], layers: Sequence[Layer], restarts: int, paths: Paths) -> Job:
    """The job; `extra` are the user's own overrides of verl.

    A variable that the recipe hands to verl's processes is left to the hosts' environment where a user has set it, and
    a job that may be restarted goes on from its last checkpoint.
    """
    users = {name for source, variables in layers if source != "recipe" for name in variables}
    replaced = [f"{ENVIRONMENT}.{name}" for name in users]
    replaced += [RESUME] if restarts else []
    kept = [override for override in [*resolved.overrides, *extra] if key(override) not in replaced]
    entrypoint = ["-m", resolved.main, *kept, *([f"{RESUME}=auto"] if restarts else [])]
    files = {name: file.read_text() for name, file in resolved.files.items()}
    return Job(entrypoint, files, {"VERL_FILE_LOGGER_ROOT": f"{paths.out}/metrics"})


def last_value(overrides: Sequence[str], name: str, default: str) -> str:
    """What the last override says of a key."""
    return next((one.partition("=")[2] for one in reversed(overrides) if key(one) == name), default)


def values(overrides: Sequence[str], ports: Ports) -> dict[str, str]:
    """The run's own values in the environment table."""
    eager = last_value(overrides, EAGER, "false").lower() == "true"
    return {"task_queue": "2" if eager else "1", "hccl_host": ports.hccl_host, "hccl_npu": ports.hccl_npu}


def key(override: str) -> str:
    """The key of a hydra override: + and ~ before it are not of its name."""
    return override.partition("=")[0].lstrip("+~")


def places(
    recipe: Recipe,
    inventory: Inventory,
    run: str,
    local: bool,
    model: str | None = None,
    data: str | None = None,
    out: str | None = None,
) -> Paths:
    """The paths of a run; what is not given lies in the project's folder, or in the first of inventory.shared.

    Args:
        local: the head is this machine.

    Raises:
        LaunchError: one is empty, as an unset variable leaves it, or there is no default for what is not given.
    """
    must_be_said({"--model": model, "--data": data, "--out": out})
    data = default_data(inventory, local) if data is None else os.path.abspath(data)
    if model is not None and (model.startswith((".", "/")) or os.path.exists(model)):
        model = os.path.abspath(model)
    return paths_of(recipe, model, data, default_out(inventory, run, local) if out is None else os.path.abspath(out))


def must_be_said(options: Mapping[str, str | None]) -> None:
    """Raise LaunchError for an option, or an argument, that is empty, as an unset variable of the shell leaves it."""
    for option, value in options.items():
        if value is not None and not value.strip():
            raise LaunchError(f"{option} is empty: give a value, or leave it out")


def default_data(inventory: Inventory, local: bool) -> str:
    """Where the data sets are unless --data says so: where `run.sh data` puts them."""
    folder = working_folder(inventory, local) or next(iter(inventory.shared), None)
    if folder is None:
        raise LaunchError("--data is missing: the inventory names an image, and neither a project nor shared folders")
    return f"{folder}/data"


def default_out(inventory: Inventory, run: str, local: bool) -> str:
    """Where a run writes unless --out says so."""
    if inventory.shared:
        return f"{inventory.shared[0]}/runs/{run}"
    folder = working_folder(inventory, local)
    if folder is None:
        raise LaunchError("--out is missing: the inventory names an image, and neither a project nor shared folders")
    return f"{folder}/runs/{run}"


def working_folder(inventory: Inventory, local: bool) -> str | None:
    """Where a command that is given no folder reads and writes: here, or where the project is on other hosts."""
    return os.getcwd() if local and inventory.image is None else project_of(inventory)


def project_of(inventory: Inventory) -> str | None:
    """The folder of the checkout on the hosts; None is the image's own."""
    return inventory.project or (str(ROOT) if inventory.image is None else None)


def needs(recipe: Recipe, paths: Paths, overrides: Sequence[str] = ()) -> list[str]:
    """The paths that must be there on each host. A model that is no path is an id of the hub.

    Args:
        overrides: verl's settings, of which one names the file of a reward.

    Raises:
        LaunchError: that file's path is relative, and the job has no such file.
    """
    files = [f"{paths.data}/{name}" for name in dict.fromkeys([recipe.data.train, recipe.data.validation])]
    reward = last_value(overrides, REWARD, "null").strip("'\"")
    if not reward.startswith("/") and reward not in (*recipe.files, "null"):
        raise LaunchError(f"{REWARD}={reward}: the job's folder has not this file: give an absolute path on the hosts")
    found = [paths.model, *files, *([] if reward in recipe.files else [reward])]
    return [path for path in found if path.startswith("/")]


def columns(overrides: Sequence[str]) -> list[str]:
    """What verl's data set and rewards read of each row; a data set of the user's own has its own columns."""
    if last_value(overrides, "data.custom_cls.path", "null") != "null":
        return []
    keys = {"data.prompt_key": "prompt", "data.reward_fn_key": "data_source"}
    return [*(last_value(overrides, key, name) for key, name in keys.items()), "reward_model"]


def under(path: str, folders: list[str]) -> bool:
    """Whether a path lies in one of the folders."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def saving(recipe: Recipe, overrides: Sequence[str], paths: Paths) -> Saving | None:
    """The checkpoints of a run; None where there are none, or a value is not a number, which verl refuses."""
    every = _count(last_value(overrides, SAVE, "-1"))
    batch = _count(last_value(overrides, "data.train_batch_size", "1024"))
    if every is None or batch is None:
        return None
    return Saving(
        out=paths.out,
        model=paths.model,
        train=f"{paths.data}/{recipe.data.train}",
        every=every,
        keep=_count(last_value(overrides, KEEP, "null")),
        steps=_count(last_value(overrides, STEPS, "null")),
        epochs=_count(last_value(overrides, EPOCHS[0], str(EPOCHS[1]))) or EPOCHS[1],
        batch=batch,
        parameter_bytes=parameter_bytes(recipe, overrides),
    )


def parameter_bytes(recipe: Recipe, overrides: Sequence[str]) -> int:
    """Bytes of a parameter in a checkpoint.

    FSDP saves weights and Adam's two moments in float32, Megatron BF16 weights, and with the optimizer float32 copies
    and moments.
    """
    contents = last_value(overrides, CONTENTS, "[model,optimizer,extra]")
    if recipe.backend == "megatron":
        model, optimizer = BF16, 3 * FLOAT32
    else:
        model, optimizer = FLOAT32, 2 * FLOAT32
    parts = {"hf_model": BF16, "optimizer": optimizer, "model": model}
    named = contents.strip("[]").replace(" ", "").replace("'", "").split(",")
    return sum(size for name, size in parts.items() if name in named)


def _count(text: str) -> int | None:
    return (int(text) or None) if text.isdecimal() else None  # 0 is none
