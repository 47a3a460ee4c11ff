"""The job of a run, which the head submits to Ray: its command and its files on the hosts.

The command runs verl with the recipe's overrides, then the user's, which have priority. Paths are those that the job's
processes see on the hosts.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from ascend_quant.recipes.keys import EAGER, ENVIRONMENT
from launch import ROOT, LaunchError
from launch.cluster.inventory import Inventory, Ports
from launch.inputs.model import place
from launch.plan import Job, Layer
from launch.recipes import Paths, Recipe, paths_of, resolve
from launch.recipes.overrides import key
from launch.recipes.verl import verl_of

RESUME = "trainer.resume_mode"


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


def under(path: str, folders: list[str]) -> bool:
    """Return whether a path is in one of the folders."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
