"""verl's task runner, which first registers our replica, trainer and actor with verl."""

import logging
from typing import Any

import ray
from verl.trainer.main_ppo import TaskRunnerV1

from ascend_quant.integrations.verl import compat, hooks, settings
from ascend_quant.integrations.verl.agent_loops import use_chats
from ascend_quant.integrations.verl.training import qat
from ascend_quant.integrations.wrapping import install

logger = logging.getLogger(__name__)


class RefitTaskRunner(compat.plain_class(TaskRunnerV1)):
    def run(self, config: Any) -> None:
        wanted = qat.wanted(config)
        if settings.wants_refits(config):
            settings.check(config)
            use_refits(config.trainer.v1.trainer_mode)
        else:
            logger.warning(
                "rollout quantization is not %s: this is verl's own run, without refit metrics", settings.QUANTIZATION
            )
        if wanted is not None:
            use_fake_quantization(config.trainer.v1.trainer_mode, wanted)
        use_chats(config)
        super().run(config)


def use_refits(trainer_mode: str) -> None:
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from ascend_quant.integrations.verl.receiving.replica import load
    from ascend_quant.integrations.verl.trainer import with_refits

    RolloutReplicaRegistry.register("vllm", load)
    install(hooks.WITH_ROLLOUTS_APART)
    hooks.replace_trainer(trainer_mode, with_refits(get_trainer_cls(trainer_mode)))


def use_fake_quantization(trainer_mode: str, wanted: qat.FakeQuantization) -> None:
    from verl.trainer.ppo.v1 import get_trainer_cls

    from ascend_quant.integrations.verl.training.qat_worker import with_fake_quantization

    if wanted.warning:
        logger.warning("%s", wanted.warning)
    hooks.replace_trainer(trainer_mode, with_fake_quantization(get_trainer_cls(trainer_mode), wanted))


TaskRunner = ray.remote(RefitTaskRunner)
