"""verl's `fully_async_policy` with refits: subclasses of its task runner, trainer and rollouter.

The rollouter is a separate process, which creates the engines.
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
        """Log each sync separately, under the version of the weights that it sent.

        verl averages a step's metrics over those between two syncs, which is wrong for digests and counts.
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

    Ray copies inherited methods into an actor, with the globals of their module as they were in the driver. So each
    method that creates a class is called from here, with the globals of the actor's own module.
    """

    def _create_trainer(self, config: Any) -> None:
        put(main, TRAINER, RefitFullyAsyncTrainer)
        super()._create_trainer(config)

    def _create_rollouter(self, config: Any) -> None:
        put(main, ROLLOUTER, RefitRollouter)
        super()._create_rollouter(config)
