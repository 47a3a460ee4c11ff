"""python -m ascend_quant.integrations.verl.main_ppo <overrides>: verl.trainer.main_ppo, with refits and receipts.

All settings are verl's; +recipe=NAME makes those of a recipe (`ascend-quant recipe list`). Refits are on when the
rollout's quantization is ascend_quant.
"""

from typing import Any

import hydra
from verl.trainer.main_ppo import run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from ascend_quant.integrations.verl import cpu_settings, inputs, recipe_config, settings
from ascend_quant.integrations.verl.runner import TaskRunner
from ascend_quant.integrations.verl.training import attention_settings


@hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)
def main(config: Any) -> None:
    with recipe_config.refused():
        recipe_config.check(config)
        auto_set_device(config)
        validate_config(config, need_reference_policy(config), need_critic(config))
        if not config.trainer.use_v1:
            raise ValueError(
                "trainer.use_v1=False selects verl's deprecated trainer, which cannot log refit metrics: set it to True"
            )
        cpu_settings.check(config, need_reference_policy(config), starts_ray=True)
        attention_settings.check(config, need_critic(config))
        if settings.wants_refits(config):
            settings.check(config)
        inputs.check(config)
    run_ppo(config, task_runner_class=TaskRunner)


recipe_config.register()

if __name__ == "__main__":
    main()
