"""What the demo is on each kind of device, and what verl's command line is told to train one arm."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ascend_quant.schemes import SCHEMES
from launch.demo.model import MODELS, SMALL, TINY
from launch.demo.tasks import Addition, Ledger, Task
from launch.recipes.files import FOLDER, read
from launch.recipes.hydra_syntax import leaves

QAT = "-qat"  # an arm is named after the scheme of its rollout weights; so, if it is trained with fake quantization
UNCORRECTED = "-uncorrected"  # or without importance weights
ARMS = (
    *SCHEMES,
    *(f"{scheme}{QAT}" for scheme in ("int8", "int4_g128", "int4_g32")),
    *(f"{scheme}{UNCORRECTED}" for scheme in SCHEMES),
)
HYBRID = "hybrid"  # or has replicas of different schemes
IMPORTANCE_SAMPLING = ("token", "sequence")


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
    """The demo of one kind of device.

    Attributes:
        stack: whose environment variables a run has.
        recipe: in configs/recipes.
        models: names that --model may have.
        arms: those that run unless others are chosen.
        cores_to_start_early: with so many, an arm starts while the one before it trains.
    """

    stack: str
    recipe: str
    task: Task
    models: tuple[str, ...]
    shape: Mapping[str, int]
    warm_up: WarmUp
    arms: tuple[str, ...]
    cores_to_start_early: float


SETUPS = {
    "cpu": Setup(
        stack="cpu",
        recipe="demo",
        task=Addition(),
        models=MODELS,
        shape=TINY,
        warm_up=WarmUp(0, fall=800, batch=128, learning_rate=2e-3, ramp=1, band=(0.40, 0.60), seconds=600),
        arms=("bf16", "int8"),
        cores_to_start_early=inf,  # a training takes them all
    ),
    "cuda": Setup(
        stack="cuda13",
        recipe="demo-cuda",
        task=Ledger(),
        models=("qwen2",),
        shape=SMALL,
        # How soon 91 M parameters learn to copy and to carry was not seen yet: some 500 updates for 0.3 M and 8 lines.
        warm_up=WarmUp(3000, fall=500, batch=64, learning_rate=5e-4, ramp=100, band=(0.30, 0.50), seconds=240),
        arms=("bf16", "int8", "fp8", "int8-uncorrected"),
        cores_to_start_early=12,
    ),
}


@dataclass(frozen=True)
class Choices:
    """What the user chose, for all arms."""

    arms: tuple[str, ...]
    steps: int
    rollout_is: str
    seed: int
    model: str
    device: str = "cpu"
    kv_cache: str = "auto"
    own_setup: Setup | None = None  # in place of the demo's on this device

    @property
    def setup(self) -> Setup:
        return self.own_setup or SETUPS[self.device]

    @property
    def prompts(self) -> int:
        """How many the data file must hold for all steps."""
        return self.steps * load_recipe(self.setup.recipe)["verl"]["data"]["train_batch_size"]


def load_recipe(name: str = "demo") -> dict[str, Any]:
    """A recipe file over those that it extends: `steps`, `verl` and, of the demo on CPUs, `hybrid`."""
    return read(FOLDER / f"{name}.yaml")


def replica_schemes(arm: str) -> tuple[str, ...]:
    """The scheme of each of the arm's replicas, in their order; FLASHRL_CONFIG's names for these are the same."""
    if arm != HYBRID:
        return (scheme_of(arm),)
    hybrid = load_recipe()["hybrid"]
    names = [config["fn"] for config in hybrid["flashrl"]["configs"]]
    return tuple(names[rank % len(names)] for rank in range(hybrid["verl"]["trainer"]["n_gpus_per_node"]))


def scheme_of(arm: str) -> str:
    """That of the rollout weights of an arm whose replicas are alike."""
    return arm.removesuffix(QAT).removesuffix(UNCORRECTED)


def is_corrected(arm: str) -> bool:
    """Whether the arm has importance weights against the difference between the engine's policy and the trainer's."""
    return not arm.endswith(UNCORRECTED)


def write_flashrl_config(path: Path) -> None:
    """What FLASHRL_CONFIG names in the hybrid arm."""
    import yaml

    path.write_text(yaml.safe_dump(load_recipe()["hybrid"]["flashrl"], sort_keys=False))


def overrides(
    choices: Choices, arm: str, out: Path, ray_folder: Path, changes: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """All override arguments of one arm; `++` sets a key whether verl's defaults have it or not.

    Args:
        changes: keys of verl that are to be otherwise.
    """
    tree = dict(leaves(load_recipe(choices.setup.recipe)["verl"])) | this_arm(arm)
    tree |= this_run(choices, arm, out, ray_folder) | changes
    return [f"++{key}={json.dumps(value)}" for key, value in tree.items()]


def this_arm(arm: str) -> dict[str, Any]:
    """What sets the arm apart: the scheme of all replicas (and of training), or what FLASHRL_CONFIG tells each."""
    if arm == HYBRID:
        return dict(leaves(load_recipe()["hybrid"]["verl"]))
    engine, scheme = "actor_rollout_ref.rollout.engine_kwargs", scheme_of(arm)
    options = f"{engine}.vllm.hf_overrides.quantization_config"
    trained = {f"{engine}.ascend_quant.qat": scheme} if arm.endswith(QAT) else {}
    return {f"{options}.quant_method": "ascend_quant", f"{options}.scheme": scheme, **trained}


def this_run(choices: Choices, arm: str, out: Path, ray_folder: Path) -> dict[str, Any]:
    """The keys that no file can know.

    Without importance weights verl 0.9.1 computes none, rejects nothing, and still logs the mismatch; the old policy's
    log-probabilities are the trainer's own in every arm, for bypass_mode stays off.
    """
    data = str(out / "prompts.parquet")
    return {
        "actor_rollout_ref.model.path": str(out / "start"),
        "actor_rollout_ref.rollout.seed": choices.seed,
        "algorithm.rollout_correction.rollout_is": choices.rollout_is if is_corrected(arm) else None,
        "data.seed": choices.seed,
        "data.train_files": data,
        "data.val_files": data,
        "hydra.run.dir": str(out / arm),
        "ray_kwargs.ray_init._temp_dir": str(ray_folder),
        "reward.custom_reward_function.path": str(Path(__file__).with_name("reward.py")),
        "trainer.default_local_dir": str(out / arm / "checkpoints"),
        "trainer.total_training_steps": choices.steps,
    }
