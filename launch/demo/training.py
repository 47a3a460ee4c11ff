"""One arm of the demo: verl's command line, and verl's processes, which are monitored through their metrics.

verl may hang if one of its workers dies, so a run without a new step for too long is ended.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ascend_quant.recipes import leaves
from ascend_quant.recipes.compose import alone, plain
from ascend_quant.schemes import SCHEMES
from launch import LaunchError
from launch.demo.task import TINY, Addition
from launch.system.child import last_errors, run

QAT = "-qat"  # suffix of an arm, after the scheme of its rollout weights, for fake quantization
UNCORRECTED = "-uncorrected"  # for no importance weights
EXACT = "-exact"  # for an actor whose forward pass computes the engine's policy bit for bit
ARMS = (
    *SCHEMES,
    *(f"{scheme}{QAT}" for scheme in ("int8", "int4_g128", "int4_g32")),
    *(f"{scheme}{UNCORRECTED}" for scheme in SCHEMES),
    f"int8{EXACT}",
)
BESIDE_EXACT = (f"int8{EXACT}", "int8", "bf16")
FIRST_STEP_SECONDS = 600  # includes starting Ray, verl and vLLM: about 80 s on two idle cores
NEXT_STEP_SECONDS = 180
FINAL_SHARE = 0.05  # fraction of the warm-up's learning rate


@dataclass(frozen=True)
class WarmUp:
    """Settings of the supervised training before RL."""

    updates: int  # during which the learning rate falls
    batch: int  # answers per update
    learning_rate: float
    band: tuple[float, float]  # required range of the accuracy when sampled at temperature 1
    seconds: float  # time limit

    def rate(self, update: int, model: Any) -> float | None:
        """Return the learning rate of an update, counted from 0, which falls linearly; None after the last one."""
        fallen = update / self.updates
        return None if fallen == 1 else self.learning_rate * (1 - (1 - FINAL_SHARE) * fallen)


@dataclass(frozen=True)
class Setup:
    """The setup of a training: recipe, task and model shape."""

    recipe: str  # in configs/demo
    task: Addition  # problems, lessons and an exam, as `Addition` has them
    shape: Mapping[str, int]  # of the model
    warm_up: WarmUp


DEMO = Setup(
    recipe="demo",
    task=Addition(),
    shape=TINY,
    warm_up=WarmUp(800, batch=128, learning_rate=2e-3, band=(0.40, 0.60), seconds=600),
)


@dataclass(frozen=True)
class Choices:
    """The user's choices, for all arms."""

    arms: tuple[str, ...]
    steps: int
    seed: int
    model: str
    setup: Setup = field(default_factory=lambda: DEMO)

    @property
    def prompts(self) -> int:
        """Number of prompts that the data file must hold for all steps."""
        return self.steps * load_recipe(self.setup.recipe)["data"]["train_batch_size"]


def load_recipe(name: str = "demo", *choices: str) -> dict[str, Any]:
    """Compose verl's settings of a demo.

    Args:
        choices: choices from the groups of recipes, as "scheme=bf16".
    """
    tree = plain(alone(name, choices, group="demo"))
    # model_engine is verl's own default, and a group of files, which `++` cannot set
    return {key: value for key, value in tree.items() if key not in ("recipe", "model_engine")}


def scheme_of(arm: str) -> str:
    """Return the scheme of an arm's rollout weights."""
    return arm.removesuffix(QAT).removesuffix(UNCORRECTED).removesuffix(EXACT)


def is_corrected(arm: str) -> bool:
    """Return whether the arm has importance weights that correct the engine's policy towards the trainer's."""
    return not arm.endswith((UNCORRECTED, EXACT))


def is_exact(arm: str) -> bool:
    """Return whether the actor computes the engine's policy bit for bit."""
    return arm.endswith(EXACT)


def overrides(
    choices: Choices, arm: str, out: Path, ray_folder: Path, changes: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """Return all override arguments of one arm; `++` sets a key whether or not verl's defaults have it.

    Args:
        changes: verl settings that override the demo's.
    """
    data = str(out / "prompts.parquet")
    correction = "exact" if is_exact(arm) else "token" if is_corrected(arm) else "none"
    settings = load_recipe(choices.setup.recipe, f"scheme={scheme_of(arm)}", f"correction={correction}")
    tree = dict(leaves(settings)) | {
        "actor_rollout_ref.model.path": str(out / "start"),
        "actor_rollout_ref.rollout.seed": choices.seed,
        "data.seed": choices.seed,
        "data.train_files": data,
        "data.val_files": data,
        "hydra.run.dir": str(out / arm),
        "ray_kwargs.ray_init._temp_dir": str(ray_folder),
        "reward.custom_reward_function.path": str(Path(__file__).with_name("reward.py")),
        "trainer.default_local_dir": str(out / arm / "checkpoints"),
        "trainer.total_training_steps": choices.steps,
    }
    if arm.endswith(QAT):
        tree["actor_rollout_ref.rollout.engine_kwargs.ascend_quant.qat"] = scheme_of(arm)
    return [f"++{key}={json.dumps(value)}" for key, value in {**tree, **changes}.items()]


def command(
    choices: Choices, arm: str, out: Path, ray_folder: Path, changes: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """Return the command that trains one arm."""
    main = (sys.executable, "-m", "ascend_quant.integrations.verl.main_ppo")
    return [*main, *overrides(choices, arm, out, ray_folder, changes)]


def train(
    choices: Choices,
    arm: str,
    out: Path,
    on_steps: Callable[[int], None],
    changes: Mapping[str, Any] = MappingProxyType({}),
    seconds: float = inf,
) -> None:
    """Run one arm to its last step; its metrics and log are kept in its folder below `out`.

    Args:
        on_steps: called repeatedly with the number of finished steps.
        changes: verl settings that override the demo's.
        seconds: time limit of the whole training.

    Raises:
        LaunchError: verl has failed, hangs, or has ended early.
    """
    folder = out / arm
    folder.mkdir(parents=True, exist_ok=True)
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)  # left by an earlier run
    log, done, last_news = folder / "verl.log", 0, time.monotonic()

    def look() -> None:
        nonlocal done, last_news
        if (there := len(read_lines(metrics))) > done:
            done, last_news = there, time.monotonic()
        on_steps(done)
        allowed = NEXT_STEP_SECONDS if done else FIRST_STEP_SECONDS
        if time.monotonic() - last_news > allowed:
            raise LaunchError(f"no step after {done} of {choices.steps} steps for {allowed} s; {last_errors(log)}")

    # Ray's sockets need a short path, and Ray makes its folder world-accessible
    with tempfile.TemporaryDirectory(prefix="aq-", ignore_cleanup_errors=True) as private:
        told = command(choices, arm, out, Path(private) / "ray", changes)
        ended = run(told, folder, "verl", seconds, "cpu", look, VERL_FILE_LOGGER_PATH=str(metrics))
    if ended.code != 0 or done < choices.steps:
        raise LaunchError(f"verl {ended.how()} after {done} of {choices.steps} steps; {last_errors(log)}")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the steps logged so far by verl's `file` logger; an incomplete last line is left for the next call."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines if '"timing_s/step"' in line]
