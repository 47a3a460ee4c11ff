"""verl's `one_step_off_policy` with refits: its task runner and its trainer, extended."""

from typing import Any

from verl.experimental.one_step_off_policy import main_ppo as main
from verl.experimental.one_step_off_policy.ray_trainer import OneStepOffRayTrainer
from verl.workers.rollout.replica import RolloutReplicaRegistry

from ascend_quant.integrations.verl.asynchronous.experimental import RefitExperimentalTrainer, put
from ascend_quant.integrations.verl.compat import plain_class
from ascend_quant.integrations.verl.receiving.replica import load

RUNNER = "OneStepTaskRunner"


class RefitOneStepTrainer(RefitExperimentalTrainer, OneStepOffRayTrainer):
    def _fit_update_weights(self) -> None:
        """Add the metrics of this step's sync, which sends the weights that the step before has trained."""
        super()._fit_update_weights()
        if "update_weights" in self.timing_raw:  # not while only the critic warms up
            self.metrics.update(self.report_of(self.llm_server_manager.get_replicas()))


class RefitOneStepTaskRunner(plain_class(getattr(main, RUNNER))):
    def run(self, config: Any) -> None:
        RolloutReplicaRegistry.register("vllm", load)
        put(main, OneStepOffRayTrainer.__name__, RefitOneStepTrainer)
        super().run(config)
