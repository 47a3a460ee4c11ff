"""verl's `fully_async_policy` with refits: its task runner, its trainer and its rollouter, extended.

The rollouter is a process of its own, which creates the engines.
"""

from typing import Any

from verl.experimental.fully_async_policy import fully_async_main as main
from verl.workers.rollout.replica import RolloutReplicaRegistry

from ascend_quant.integrations.verl.asynchronous.experimental import RefitExperimentalTrainer, put
from ascend_quant.integrations.verl.compat import plain_class
from ascend_quant.integrations.verl.receiving.replica import load

RUNNER, TRAINER, ROLLOUTER = "FullyAsyncTaskRunner", "FullyAsyncTrainer", "FullyAsyncRollouter"


class RefitFullyAsyncTrainer(RefitExperimentalTrainer, plain_class(getattr(main, TRAINER))):
    async def _fit_update_weights(self) -> dict[str, Any] | None:
        """Log each sync by itself, under the version that it has brought.

        verl means a step's metrics over those between two syncs, which digests and counts are not made for.
        """
        synced = await super()._fit_update_weights()
        if synced is not None and not self.only_hybrid:
            report = self.report_of(self.checkpoint_manager.replicas)
            self.logger.log(data=report, step=self.current_param_version)
        return synced


class RefitRollouter(plain_class(getattr(main, ROLLOUTER))):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        RolloutReplicaRegistry.register("vllm", load)
        super().__init__(*args, **kwargs)


class RefitFullyAsyncTaskRunner(plain_class(getattr(main, RUNNER))):
    """verl's task runner, which creates our trainer and rollouter.

    Ray gives an actor copies of inherited methods, with the names of their module as they were in the driver. So each
    that creates something is called from here, where it is the module's own.
    """

    def _create_trainer(self, config: Any) -> None:
        put(main, TRAINER, RefitFullyAsyncTrainer)
        super()._create_trainer(config)

    def _create_rollouter(self, config: Any) -> None:
        put(main, ROLLOUTER, RefitRollouter)
        super()._create_rollouter(config)
