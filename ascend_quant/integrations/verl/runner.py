"""verl's task runner, which first puts our replica and our trainer where verl will look for them."""

import logging
from typing import Any

import ray
from verl.trainer.main_ppo import TaskRunnerV1

from ascend_quant.integrations.verl import settings, versions

logger = logging.getLogger(__name__)


class RefitTaskRunner(versions.plain_class(TaskRunnerV1)):
    def run(self, config: Any) -> None:
        if settings.wants_refits(config):
            settings.check(config)
            use_refits(config.trainer.v1.trainer_mode)
        else:
            logger.warning(
                "rollout quantization is not %s: this is verl's own run, without refit metrics", settings.QUANTIZATION
            )
        super().run(config)


def use_refits(trainer_mode: str) -> None:
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from ascend_quant.integrations.verl.replica import load
    from ascend_quant.integrations.verl.trainer import with_refits
    from ascend_quant.integrations.vllm import log_with_vllm

    log_with_vllm()  # replica.py imports vLLM's server, which leaves the root logger's handler at ERROR
    RolloutReplicaRegistry.register("vllm", load)
    versions.replace_trainer(trainer_mode, with_refits(get_trainer_cls(trainer_mode)))


TaskRunner = ray.remote(RefitTaskRunner)
