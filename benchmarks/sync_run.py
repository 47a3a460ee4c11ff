"""One arm of the sync benchmark: a short training whose processes leave time stamps."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from benchmarks import stamped, sync_measured, sync_stamps
from benchmarks.machine import ROOT
from benchmarks.tasks import Outcome
from benchmarks.train_run import FORCED, Arm, carry_out
from launch.recipes import Paths, resolve
from launch.recipes.hydra_syntax import ROLLOUT, VLLM
from launch.root import with_root
from launch.smoke.child import python

CODES = "codes"
WAYS = {"int8": "int8", CODES: "int8", "bf16": "bf16", sync_measured.PLAIN: "bf16"}  # and the scheme of the recipe
SENT = {CODES: ("rollout.send=int8",)}  # what a way changes of the recipe
OF_OUR_ENGINE = (
    f"{VLLM}.quantization=",
    f"{VLLM}.hf_overrides.quantization_config.",
    f"{ROLLOUT}.engine_kwargs.ascend_quant.",
)
CLUSTER = {  # of verl's own Ray, where no launcher has started one
    "ray_kwargs.ray_init.num_cpus": "16",  # that many processes, whatever cores there are
    "+ray_kwargs.ray_init.include_dashboard": "false",
    "+ray_kwargs.ray_init.object_store_memory": "1000000000",
}


@dataclass(frozen=True)
class Sync(Arm):
    """One training.

    Attributes:
        way: of the rollout, see WAYS.
    """

    way: str = "int8"

    def title(self) -> str:
        """For a line of progress."""
        return f"{self.shape} {self.way}"

    @property
    def file_name(self) -> str:
        """Of its log."""
        return f"{self.shape}-{self.way}"

    def command(self, model: Path, data: Path, out: Path) -> list[str]:
        """A user's; of the plain arm, verl's own main with the same settings, but for those of our engine."""
        if self.way != sync_measured.PLAIN:
            return super().command(model, data, out)
        resolved = resolve(self.loaded(), Paths(str(model), str(data), str(out)))
        overrides = [one for one in resolved.overrides if not one.lstrip("+").startswith(OF_OUR_ENGINE)]
        forced = FORCED | CLUSTER | {"trainer.total_training_steps": str(self.steps), "hydra.run.dir": str(out)}
        if self.device == "cpu":
            forced["+ray_kwargs.ray_init.num_gpus"] = str(self.gpus)  # so verl's pools count what they need
        variables = resolved.environment | {"VERL_FILE_LOGGER_ROOT": f"{out}/metrics"}
        command = ["env", *(f"{name}={value}" for name, value in variables.items())]
        command += [*python("-m", "verl.trainer.main_ppo"), *overrides]
        return [*command, *(f"{key}={value}" for key, value in forced.items()), *self.overrides]


def measure(arm: Sync, folder: Path, seconds: float, wait: bool) -> Outcome:
    """Train it in so many seconds, and read its stamps.

    Args:
        folder: with the models; logs and stamps stay there.
        wait: whether the device is waited for, see `sync_stamps`.
    """
    stamps = folder / "stamps" / arm.file_name
    shutil.rmtree(stamps, ignore_errors=True)
    path = os.pathsep.join([str(ROOT / "benchmarks" / "stamps"), with_root(os.environ)])
    variables = {sync_stamps.FOLDER: str(stamps), sync_stamps.WAIT: str(int(wait)), "PYTHONPATH": path}
    outcome = carry_out(arm, folder / "models", folder / "logs", seconds, variables)
    if outcome.result is not None:
        found = sync_measured.measured(stamped.read(stamps), arm.way, arm.device)
        outcome.result["faults"] += [f"{arm.title()}: {fault}" for fault in found.pop("faults")]
        outcome.result.update(found)
    return outcome
