"""python -m ascend_quant.integrations.verl.main_fully_async <overrides>: verl's fully_async_policy, with refits.

All settings are those of verl.experimental.fully_async_policy.fully_async_main; +recipe=NAME makes a recipe's.
"""

from pathlib import Path
from typing import Any

import hydra

from ascend_quant.integrations.verl import recipe_config
from ascend_quant.integrations.verl.asynchronous import fully_async
from ascend_quant.integrations.verl.asynchronous.experimental import run

SETTINGS = str(Path(fully_async.main.__file__).parent / "config")


@hydra.main(config_path=SETTINGS, config_name="fully_async_ppo_trainer", version_base=None)
def main(config: Any) -> None:
    with recipe_config.refused():
        recipe_config.check(config)
    run(config, fully_async.main, fully_async.RUNNER, fully_async.RefitFullyAsyncTaskRunner)


recipe_config.register()

if __name__ == "__main__":
    main()
