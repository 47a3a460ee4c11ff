"""Registers our recipes before Hydra composes a config in our mains, and checks the composed config.

python -m ascend_quant.integrations.verl.main_ppo +recipe=qwen2.5-7b-int8-gsm8k-h100 trainer.save_freq=5
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from ascend_quant.integrations.verl import validate
from ascend_quant.recipes import RecipeError, keys
from ascend_quant.recipes.compose import GROUPS, register, settle
from ascend_quant.recipes.node import node_of
from ascend_quant.terminal.exits import WRONG_USE, fail
from ascend_quant.transfer.errors import RefitError

__all__ = ["check", "refused", "register"]

ENGINE = "model_engine"  # the group with which verl chooses the files of its trainer


@contextmanager
def refused() -> Iterator[None]:
    """End the process with one line and status 2 if a check of the settings fails, instead of Hydra's traceback and 1.

    As for Hydra's own errors, HYDRA_FULL_ERROR=1 shows the traceback.
    """
    try:
        yield
    except (ValueError, AssertionError, RefitError) as error:  # the first two are verl's, too
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        fail(f"wrong settings: {type(error).__name__}: {error}", WRONG_USE)


def check(config: DictConfig) -> None:
    """Check a config that `hydra.main` composed, and replace references to our resolvers with their values.

    Raises:
        RecipeError: the config has keys that verl's own does not have, the command line has values of another kind than
            verl's defaults, or the `recipe` node is not valid; one line per problem.
    """
    made, bare = _plain(config), _plain(_bare())
    if found := keys.unknown(made, bare, _added()) or [*validate.types(_given(), bare, made)]:
        raise RecipeError("\n".join(found))
    if keys.NODE in config:
        node_of({keys.NODE: OmegaConf.to_container(config[keys.NODE], resolve=True)})
    settle(config)


def _plain(config: DictConfig) -> Any:
    return OmegaConf.to_container(config, resolve=False)


def _bare() -> DictConfig:
    """Compose the config of this main without our groups, and with the same choices from verl's groups."""
    hydra = HydraConfig.get()
    chosen = dict(hydra.runtime.choices)
    given = [one for one in _given() if one.key_or_group in chosen and one.key_or_group not in GROUPS]
    overrides = [one.input_line for one in given if one.key_or_group != ENGINE]
    if ENGINE in chosen:  # a recipe may have changed this choice
        overrides.append(f"{ENGINE}={chosen[ENGINE]}")
    return compose(hydra.job.config_name, overrides=overrides)


def _given() -> list[Override]:
    return OverridesParser.create().parse_overrides(list(HydraConfig.get().overrides.task))


def _added() -> list[str]:
    """List the keys that the command line adds with + or ++."""
    return [one.key_or_group for one in _given() if one.is_add() or one.is_force_add()]
