"""python -m ascend_quant.integrations.verl.main_one_step_off <overrides>: verl's one_step_off_policy, with refits.

All settings, recipes too (+recipe=NAME), are composed with those of verl.experimental.one_step_off_policy.main_ppo.
"""

import sys
from pathlib import Path
from typing import Any

import hydra

from ascend_quant.integrations.verl import recipe_config
from ascend_quant.integrations.verl.asynchronous import one_step_off
from ascend_quant.integrations.verl.asynchronous.experimental import run

SETTINGS = str(Path(one_step_off.main.__file__).parent / "config")
# verl 0.9.1 refers to a folder of its source tree, so it starts only from there
OTHER_SETTINGS = "hydra.searchpath=[pkg://verl.trainer.config]"


@hydra.main(config_path=SETTINGS, config_name="one_step_off_ppo_trainer", version_base=None)
def main(config: Any) -> None:
    with recipe_config.refused():
        recipe_config.check(config)
    run(config, one_step_off.main, one_step_off.RUNNER, one_step_off.RefitOneStepTaskRunner)


recipe_config.register()

if __name__ == "__main__":
    sys.argv.append(OTHER_SETTINGS)
    main()
