"""verl's `one_step_off_policy` with refits: subclasses of its task runner and trainer."""

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
        """Add the metrics of this step's sync, which sends the weights that the previous step trained."""
        super()._fit_update_weights()
        if "update_weights" in self.timing_raw:  # false while only the critic warms up
            self.metrics.update(self.report_of(self.llm_server_manager.get_replicas()))


class RefitOneStepTaskRunner(plain_class(getattr(main, RUNNER))):
    def run(self, config: Any) -> None:
        RolloutReplicaRegistry.register("vllm", load)
        put(main, OneStepOffRayTrainer.__name__, RefitOneStepTrainer)
        super().run(config)
