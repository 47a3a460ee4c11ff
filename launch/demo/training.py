"""One arm: what verl's command line is told, and verl's processes, watched through the metrics that they write.

verl may hang instead of failing when one of its workers dies, so a run without a new step for too long is ended.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ascend_quant.schemes import SCHEMES
from launch.demo import DemoError
from launch.demo.metrics import last_errors, read_lines
from launch.demo.model import TINY
from launch.demo.tasks import Addition
from launch.environment import environment
from launch.processes import ProcessTree
from launch.recipes.files import FOLDER, read
from launch.recipes.hydra_syntax import leaves

QAT = "-qat"  # an arm is named after the scheme of its rollout weights; so, if it is trained with fake quantization
UNCORRECTED = "-uncorrected"  # or without importance weights
ARMS = (
    *SCHEMES,
    *(f"{scheme}{QAT}" for scheme in ("int8", "int4_g128", "int4_g32")),
    *(f"{scheme}{UNCORRECTED}" for scheme in SCHEMES),
)
FIRST_STEP_SECONDS = 600  # includes starting Ray, verl and vLLM: about 80 s on two idle cores
NEXT_STEP_SECONDS = 180
POLL_SECONDS = 0.5
LOOK_EVERY = 8  # polls: reading what 30 processes are costs time they need


@dataclass(frozen=True)
class WarmUp:
    """The supervised training before RL.

    Attributes:
        longest: updates at the full learning rate, at most: it ends when the model's likeliest answers are right.
        fall: updates after that, in which the rate falls linearly to a twentieth, and what is left of noise goes.
        batch: answers an update.
        learning_rate: at its highest.
        ramp: updates until it is there.
        band: the accuracy when sampled at temperature 1 must lie between these.
        seconds: more is an error.
    """

    longest: int
    fall: int
    batch: int
    learning_rate: float
    ramp: int
    band: tuple[float, float]
    seconds: float


@dataclass(frozen=True)
class Setup:
    """What is trained.

    Attributes:
        recipe: in configs/recipes.
        task: problems, lessons and an exam, as `Addition` has them.
        shape: of the model.
    """

    recipe: str
    task: Addition
    shape: Mapping[str, int]
    warm_up: WarmUp


DEMO = Setup(
    recipe="demo",
    task=Addition(),
    shape=TINY,
    warm_up=WarmUp(0, fall=800, batch=128, learning_rate=2e-3, ramp=1, band=(0.40, 0.60), seconds=600),
)


@dataclass(frozen=True)
class Choices:
    """What the user chose, for all arms."""

    arms: tuple[str, ...]
    steps: int
    seed: int
    model: str
    setup: Setup = field(default_factory=lambda: DEMO)

    @property
    def prompts(self) -> int:
        """How many the data file must hold for all steps."""
        return self.steps * load_recipe(self.setup.recipe)["verl"]["data"]["train_batch_size"]


def load_recipe(name: str = "demo") -> dict[str, Any]:
    """A recipe file over those that it extends: `steps` and `verl`."""
    return read(FOLDER / f"{name}.yaml")


def scheme_of(arm: str) -> str:
    """That of the arm's rollout weights."""
    return arm.removesuffix(QAT).removesuffix(UNCORRECTED)


def is_corrected(arm: str) -> bool:
    """Whether the arm has importance weights against the difference between the engine's policy and the trainer's."""
    return not arm.endswith(UNCORRECTED)


def overrides(
    choices: Choices, arm: str, out: Path, ray_folder: Path, changes: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """All override arguments of one arm; `++` sets a key whether verl's defaults have it or not.

    Without importance weights verl 0.9.1 computes none, rejects nothing, and still logs the mismatch; the old policy's
    log-probabilities are the trainer's own in every arm, for bypass_mode stays off.

    Args:
        changes: keys of verl that are to be otherwise.
    """
    engine, data = "actor_rollout_ref.rollout.engine_kwargs", str(out / "prompts.parquet")
    tree = dict(leaves(load_recipe(choices.setup.recipe)["verl"])) | {
        f"{engine}.vllm.hf_overrides.quantization_config.quant_method": "ascend_quant",
        f"{engine}.vllm.hf_overrides.quantization_config.scheme": scheme_of(arm),
        "actor_rollout_ref.model.path": str(out / "start"),
        "actor_rollout_ref.rollout.seed": choices.seed,
        "algorithm.rollout_correction.rollout_is": "token" if is_corrected(arm) else None,
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
        tree[f"{engine}.ascend_quant.qat"] = scheme_of(arm)
    return [f"++{key}={json.dumps(value)}" for key, value in {**tree, **changes}.items()]


class Training:
    """A training that runs, with what it has written; whoever makes one ends it in any case.

    Attributes:
        arm: which.
        ended: whether verl has made all its steps and ended.

    Args:
        changes: keys of verl that are to be otherwise than in the demo.
    """

    def __init__(self, choices: Choices, arm: str, out: Path, changes: Mapping[str, Any] = MappingProxyType({})):
        self.arm, self.ended, folder = arm, False, out / arm
        self._steps, self._metrics, self._log = choices.steps, folder / "metrics.jsonl", folder / "verl.log"
        folder.mkdir(parents=True, exist_ok=True)
        self._metrics.unlink(missing_ok=True)  # an earlier run's steps are not this one's
        with ExitStack() as made:
            private = Path(tempfile.mkdtemp(prefix="aq-"))  # Ray's sockets need a short path, and Ray opens its folder
            made.callback(shutil.rmtree, private, ignore_errors=True)
            variables = environment("cpu", os.environ) | {"VERL_FILE_LOGGER_PATH": str(self._metrics)}
            command = [sys.executable, "-m", "ascend_quant.integrations.verl.main_ppo"]
            self._verl = started(command + overrides(choices, arm, out, private / "ray", changes), folder, variables)
            self._tree = ProcessTree(self._verl.pid)
            made.callback(self._verl.wait)
            made.callback(self._tree.end)
            self._made = made.pop_all()
        self._last_news, self._done, self._polls = time.monotonic(), 0, 0

    def end(self) -> None:
        """End what still runs of it."""
        self._made.close()

    def look(self) -> int:
        """How many steps are done.

        Raises:
            DemoError: verl has failed, stands still, or has ended early.
        """
        ended = self._verl.poll() is not None  # asked before the metrics are read: the last step is not missed
        if self._polls % LOOK_EVERY == 0:
            self._tree.look()
        self._polls += 1
        done = len(read_lines(self._metrics))
        if done > self._done:
            self._last_news = time.monotonic()
        self._done, steps = done, f"{done} of {self._steps} steps"
        if ended and (self._verl.returncode or done < self._steps):
            raise DemoError(f"verl ended with code {self._verl.returncode} after {steps}; {last_errors(self._log)}")
        allowed = NEXT_STEP_SECONDS if done else FIRST_STEP_SECONDS
        if not ended and time.monotonic() - self._last_news > allowed:
            raise DemoError(f"no step after {steps} for {allowed} s; {last_errors(self._log)}")
        self.ended = ended
        return done


def started(command: list[str], folder: Path, variables: Mapping[str, str]) -> subprocess.Popen:
    """verl's process, in a session of its own; what it says goes into verl.log in its folder."""
    with (folder / "verl.log").open("wb") as output:
        return subprocess.Popen(
            command, cwd=folder, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def train(choices: Choices, arm: str, out: Path, on_steps: Callable[[int], None]) -> None:
    """Run one arm to its last step.

    Raises:
        DemoError: verl has failed, stands still, or has ended early.
    """
    training = Training(choices, arm, out)
    try:
        while not training.ended:
            on_steps(training.look())
            time.sleep(POLL_SECONDS)
    finally:
        training.end()
