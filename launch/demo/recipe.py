"""From the device's recipe and one arm's choices to the override arguments of verl's command line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_quant.schemes import SCHEMES
from launch.demo.setups import SETUPS, Setup
from launch.recipes.files import FOLDER, read
from launch.recipes.trees import leaves

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
class Choices:
    """What the user chose, for all arms."""

    arms: tuple[str, ...]
    steps: int
    rollout_is: str
    seed: int
    model: str
    device: str = "cpu"

    @property
    def setup(self) -> Setup:
        return SETUPS[self.device]


def load_recipe(device: str = "cpu") -> dict[str, Any]:
    """The device's recipe file, over those that it extends: `steps`, `verl` and, on CPUs, `hybrid`."""
    return read(FOLDER / f"{SETUPS[device].recipe}.yaml")


def prompts_a_step(device: str = "cpu") -> int:
    """How many prompts the data file must hold for each step."""
    return load_recipe(device)["verl"]["data"]["train_batch_size"]


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


def overrides(choices: Choices, arm: str, out: Path, ray_folder: Path) -> list[str]:
    """All override arguments of one arm; `++` sets a key whether verl's defaults have it or not."""
    tree = dict(leaves(load_recipe(choices.device)["verl"])) | this_arm(arm) | this_run(choices, arm, out, ray_folder)
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
