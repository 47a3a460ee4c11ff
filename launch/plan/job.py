"""The job of a run, which the head submits to Ray: its command, its files on the hosts, and its checkpoints.

The command runs verl with the recipe's overrides, then the user's, which have priority. Paths are those that the job's
processes see on the hosts.
"""

import os
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from ascend_quant.recipes.keys import ACTOR, EAGER, ENVIRONMENT
from launch import ROOT, LaunchError
from launch.cluster.inventory import Inventory, Ports
from launch.inputs.model import place
from launch.plan import Job, Layer, Saving
from launch.recipes import Paths, Recipe, paths_of, resolve
from launch.recipes.overrides import key
from launch.recipes.paths import data_files
from launch.recipes.verl import verl_of

SAVE = "trainer.save_freq"  # verl saves no checkpoints by default
RESUME = "trainer.resume_mode"
REWARDS = (
    "reward.custom_reward_function.path",
    "custom_reward_function.path",
)  # if both are given, verl uses the second
KEEP = "trainer.max_actor_ckpt_to_keep"  # verl keeps all checkpoints by default
STEPS = "trainer.total_training_steps"  # by default, the number of steps in the epochs
EPOCHS = ("trainer.total_epochs", 30)
BATCH = ("data.train_batch_size", 1024)
CONTENTS = f"{ACTOR}.checkpoint.save_contents"
FLOAT32, BF16 = 4, 2


def job(run: str, recipe: Recipe, paths: Paths, layers: Sequence[Layer], restarts: int) -> Job:
    """Return the job that the head submits.

    If the user has set a variable that the recipe passes to verl's processes, the user's value has priority. A job that
    may be restarted continues from its last checkpoint. Metrics are written to a folder of the run beside the
    checkpoints, because verl overwrites the metrics file when a run continues, and because the job's working directory
    is deleted when Ray ends.
    """
    users = {name for source, variables in layers if source != "recipe" for name in variables}
    replaced = [f"{ENVIRONMENT}.{name}" for name in users]
    replaced += [RESUME] if restarts else []
    kept = [override for override in resolve(recipe, paths) if key(override) not in replaced]
    entrypoint = ["-m", verl_of(recipe.stack).main, *kept, *([f"{RESUME}=auto"] if restarts else [])]
    files = {name: Path(file).read_text() for name, file in recipe.files.items()}
    folder = f"{paths.out}/metrics-{run}"
    metrics = {"VERL_FILE_LOGGER_ROOT": folder, "TENSORBOARD_DIR": f"{folder}/tensorboard"}
    return Job(entrypoint, files, {name: place for name, place in metrics.items() if name not in users})


def metrics_in(out: Path) -> Path | None:
    """Return the file of verl's metrics below a run's output folder; None if it does not exist yet."""
    return next(out.glob("metrics*/**/*.jsonl"), None)


def values(recipe: Recipe, ports: Ports) -> dict[str, str]:
    """Return the run's values for the templates of the environment table."""
    return {
        "task_queue": "2" if recipe.setting(EAGER) else "1",
        "expansion": expansion(recipe),
        "hccl_host": ports.hccl_host,
        "hccl_npu": ports.hccl_npu,
    }


def expansion(recipe: Recipe) -> str:
    """Return where HCCL's collectives run: on vector cores ("AIV"), or where HCCL runs them by default ("").

    They run on vector cores if the engine uses tensor parallelism. They do not with expert parallelism, because MC2
    then dispatches the tokens, and MC2 with AIV hung on an A3 (vllm-ascend issue 14928). They do not on several hosts
    either, because between hosts CANN supports AIV only on the A3s of one supernode.
    """
    engine = recipe.rollout
    return "AIV" if engine.tensor_parallel > 1 and engine.expert_parallel == recipe.nodes == 1 else ""


def places(
    recipe: Recipe,
    inventory: Inventory,
    run: str,
    local: bool,
    model: str | None = None,
    data: str | None = None,
    out: str | None = None,
) -> Paths:
    """Return the paths of a run, by default in the current folder, the project's on other hosts, or a shared one.

    Args:
        local: whether the head is this machine.

    Raises:
        LaunchError: a path is not given and has no default.
    """
    here = os.getcwd() if local and inventory.image is None else project_of(inventory)
    data = f"{_folder('--data', here, *inventory.shared)}/data" if data is None else os.path.abspath(data)
    out = f"{_folder('--out', *inventory.shared, here)}/runs/{run}" if out is None else os.path.abspath(out)
    return paths_of(recipe, model and place(model), data, out)


def _folder(option: str, *folders: str | None) -> str:
    if (found := next(filter(None, folders), None)) is None:
        raise LaunchError(
            f"{option} is required: the inventory names an image, but neither a project nor shared folders"
        )
    return found


def project_of(inventory: Inventory) -> str | None:
    """Return the folder of the checkout on the hosts; None if the image's installation is used."""
    return inventory.project or (str(ROOT) if inventory.image is None else None)


def needs(recipe: Recipe, paths: Paths) -> list[str]:
    """List the paths that must exist on each host. A model that is not a path is a hub id.

    Raises:
        LaunchError: the path of the reward file is relative, and the job's working directory has no such file.
    """
    found = [paths.model, *dict.fromkeys(data_files(recipe, paths))]
    rewards = {name: recipe.setting(name) for name in REWARDS}
    for name, reward in rewards.items():
        if reward is None or reward in recipe.files:
            continue
        if not reward.startswith("/"):
            raise LaunchError(
                f"{name}={reward}: the job's folder does not contain this file: give an absolute path on the hosts"
            )
        found.append(reward)
    return [path for path in found if path.startswith("/")]


def columns(recipe: Recipe) -> list[str]:
    """List the columns that verl's data set and rewards read; none for a user's own data set class."""
    if recipe.setting("data.custom_cls.path") is not None:
        return []
    return [prompt(recipe), recipe.setting("data.reward_fn_key", "data_source"), "reward_model"]


def prompt(recipe: Recipe) -> str:
    """Return the name of the column that contains the messages."""
    return recipe.setting("data.prompt_key", "prompt")


def least_rows(recipe: Recipe, paths: Paths) -> dict[str, int]:
    """Return the minimum number of rows of the training file, by its path.

    verl drops incomplete batches: with fewer rows than a batch, its data loader is empty, and with fewer than the steps
    need, the run ends early as if it were complete.
    """
    batch = recipe.count(*BATCH)
    if batch is None or not columns(recipe):  # verl refuses such a batch size; a custom data set may count otherwise
        return {}
    steps, epochs = recipe.count(STEPS) or 1, recipe.count(*EPOCHS) or EPOCHS[1]
    return {data_files(recipe, paths)[0]: batch * ceil(steps / epochs)}


def under(path: str, folders: list[str]) -> bool:
    """Return whether a path is in one of the folders."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def saving(recipe: Recipe, paths: Paths) -> Saving | None:
    """Return the checkpoints of a run; None if it writes none, or if a value is not a number, which verl rejects."""
    every, batch = recipe.count(SAVE), recipe.count(*BATCH)
    if every is None or batch is None:
        return None
    return Saving(
        out=paths.out,
        model=paths.model,
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
