"""The arms of the demo, and verl, which is started as a user starts it and monitored through its metrics.

verl may hang if one of its workers dies, so a run without a new step for too long is ended.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ascend_quant.demo import DemoError
from ascend_quant.demo.task import TINY, Addition
from ascend_quant.processes.child import Ended, last_errors, run
from ascend_quant.recipes.compose import alone, plain
from ascend_quant.schemes import SCHEMES

MAIN = (sys.executable, "-m", "ascend_quant.integrations.verl.main_ppo")
METRICS = "metrics.jsonl"
QAT = "-qat"  # suffix of an arm, after the scheme of its rollout weights, for fake quantization
UNCORRECTED = "-uncorrected"  # for no importance weights
EXACT = "-exact"  # for an actor whose forward pass computes the engine's policy bit for bit
ARMS = (
    *SCHEMES,
    *(f"{scheme}{QAT}" for scheme in ("int4_g128", "int4_g32")),
    *(f"{scheme}{UNCORRECTED}" for scheme in SCHEMES),
    f"int8{EXACT}",
)
BESIDE_EXACT = (f"int8{EXACT}", "int8", "bf16")
FIRST_STEP_SECONDS = 600  # includes starting Ray, verl and vLLM: about 80 s on two idle cores
NEXT_STEP_SECONDS = 180
FINAL_SHARE = 0.05  # fraction of the warm-up's learning rate
NO_CHANGES: Mapping[str, Any] = MappingProxyType({})


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


def load_recipe(name: str = "demo") -> dict[str, Any]:
    """Compose verl's settings of a demo."""
    return {key: value for key, value in plain(alone(name, group="demo")).items() if key != "recipe"}


def scheme_of(arm: str) -> str:
    """Return the scheme of an arm's rollout weights."""
    return arm.removesuffix(QAT).removesuffix(UNCORRECTED).removesuffix(EXACT)


def is_corrected(arm: str) -> bool:
    """Return whether the arm has importance weights that correct the engine's policy towards the trainer's."""
    return not arm.endswith((UNCORRECTED, EXACT))


def is_exact(arm: str) -> bool:
    """Return whether the actor computes the engine's policy bit for bit."""
    return arm.endswith(EXACT)


def recipe_of(choices: Choices, arm: str) -> list[str]:
    """Return the words of verl's command line that choose the recipe of an arm."""
    correction = "exact" if is_exact(arm) else "token" if is_corrected(arm) else "none"
    return [f"+demo={choices.setup.recipe}", f"scheme={scheme_of(arm)}", f"correction={correction}"]


def settings_of(choices: Choices, arm: str, out: Path) -> dict[str, Any]:
    """Return the settings of an arm that no recipe has: files, seed and steps."""
    settings = inputs(out) | {
        "actor_rollout_ref.rollout.seed": choices.seed,
        "data.seed": choices.seed,
        "trainer.total_training_steps": choices.steps,
    }
    if arm.endswith(QAT):
        settings["actor_rollout_ref.rollout.engine_kwargs.ascend_quant.qat"] = scheme_of(arm)
    return settings


def inputs(folder: Path) -> dict[str, str]:
    """Return the settings of the model and the prompts that `warmup.write_inputs` writes into a folder."""
    data = str(folder / "prompts.parquet")
    return {"actor_rollout_ref.model.path": str(folder / "start"), "data.train_files": data, "data.val_files": data}


def command(recipe: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Return the command that starts verl; `++` sets a key whether or not verl's defaults have it."""
    return [*MAIN, *recipe, *(f"++{key}={json.dumps(value)}" for key, value in settings.items())]


def verl(
    recipe: Sequence[str],
    settings: Mapping[str, Any],
    folder: Path,
    seconds: float,
    stack: str = "cpu",
    look: Callable[[], None] = lambda: None,
) -> Ended:
    """Train with verl, which starts and ends a Ray of its own; log, metrics and Hydra's files are in the folder.

    Args:
        recipe: choices of config groups.
        look: called five times a second; an exception from it ends the training.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / METRICS).unlink(missing_ok=True)  # left by an earlier run
    # Ray's sockets need a short path, and Ray makes its folder world-accessible
    with tempfile.TemporaryDirectory(prefix="aq-", ignore_cleanup_errors=True) as private:
        places = {
            "hydra.run.dir": str(folder),
            "ray_kwargs.ray_init._temp_dir": f"{private}/ray",
            "trainer.default_local_dir": str(folder / "checkpoints"),
        }
        told = command(recipe, {**places, **settings})
        return run(told, folder, "verl", seconds, stack, look, VERL_FILE_LOGGER_PATH=str(folder / METRICS))


def train(
    choices: Choices,
    arm: str,
    out: Path,
    on_steps: Callable[[int], None],
    changes: Mapping[str, Any] = NO_CHANGES,
    seconds: float = inf,
) -> None:
    """Run one arm to its last step; its metrics and log are kept in its folder below `out`.

    Args:
        on_steps: called repeatedly with the number of finished steps.
        changes: verl settings that override the demo's.
        seconds: time limit of the whole training.

    Raises:
        DemoError: verl has failed, hangs, or has ended early.
    """
    folder, done, last_news = out / arm, 0, time.monotonic()
    log = folder / "verl.log"

    def look() -> None:
        nonlocal done, last_news
        if (there := len(read_lines(folder / METRICS))) > done:
            done, last_news = there, time.monotonic()
        on_steps(done)
        allowed = NEXT_STEP_SECONDS if done else FIRST_STEP_SECONDS
        if time.monotonic() - last_news > allowed:
            raise DemoError(f"no step after {done} of {choices.steps} steps for {allowed} s; {last_errors(log)}")

    ended = verl(recipe_of(choices, arm), {**settings_of(choices, arm, out), **changes}, folder, seconds, look=look)
    if ended.code != 0 or done < choices.steps:
        raise DemoError(f"verl {ended.how()} after {done} of {choices.steps} steps; {last_errors(log)}")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the steps logged so far by verl's `file` logger; an incomplete last line is left for the next call."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines if '"timing_s/step"' in line]
