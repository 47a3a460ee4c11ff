"""The job that the head submits to Ray: verl with the recipe's overrides, then the user's, which win."""

from collections.abc import Sequence

from launch.inventory.fields import Ports
from launch.plan.fields import Job, Layer
from launch.recipes import Paths
from launch.recipes.overrides import Resolved
from launch.recipes.settings import ENVIRONMENT

EAGER = "actor_rollout_ref.rollout.enforce_eager"  # false unless it is given
SAVE = "trainer.save_freq"  # never, unless it is given
RESUME = "trainer.resume_mode"


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
