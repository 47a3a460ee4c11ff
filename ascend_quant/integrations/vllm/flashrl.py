"""FLASHRL_* variables in vLLM: every engine of this environment starts with the options that they select.

With several configs, replica r of a model uses config r modulo their number. verl sets the replica's index in a
variable; vLLM's data parallelism sets it as an engine argument, or only in its engine cores, which then select their
config themselves.
"""

import logging
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from ascend_quant.engine.options import NAME
from ascend_quant.flashrl.config import Config, Replica, resolve
from ascend_quant.flashrl.files import ConfigError
from ascend_quant.flashrl.functions import FUNCTIONS
from ascend_quant.flashrl.variables import NAMES, Variables, from_environment, set_up

logger = logging.getLogger(__name__)

REPLICA_OF_VERL = "VERL_REPLICA_RANK"

_followed: list[Variables] = []  # the variables that this process uses: the first ones that were read


def follow_variables() -> bool:
    """Apply FLASHRL_* variables in one of vLLM's processes; return whether they configure engines.

    Raises:
        VariableError: a variable is unknown, or has an invalid value.
        ConfigError: FlashRL has patched this process, or a variable is set without FLASHRL_CONFIG. When an engine is
            created: FLASHRL_CONFIG has an unknown value; the message lists the valid ones.
    """
    variables = from_environment(os.environ)
    set_up(variables)
    for line in variables.disregarded:
        logger.warning("%s", line)
    if variables.config is None:
        if wanted := options_of(variables):
            raise ConfigError(f"{NAMES[next(iter(wanted))]} needs FLASHRL_CONFIG; valid values: {', '.join(FUNCTIONS)}")
        return False
    if "flash_rl" in sys.modules:
        raise ConfigError("FlashRL has patched this process already; run `ascend-quant cleanup`, then start again")
    _followed.append(variables)
    return True


def configuring(original: Callable) -> Callable:
    """Wrap `EngineArgs.create_engine_config`: the settings of the FLASHRL_* variables are applied first."""

    def create_engine_config(self, *args, **kwargs):
        # only when an engine is created: its workers also run this, and a hub may be slow
        configure(self, resolve(_followed[0].config), _followed[0])
        return original(self, *args, **kwargs)

    return create_engine_config


def configure(arguments: Any, config: Config, variables: Variables) -> None:
    """Apply the config to vLLM's engine arguments.

    Args:
        arguments: vLLM's EngineArgs, changed in place.

    Raises:
        ConfigError: the caller has also requested something else.
    """
    rank = replica_of(arguments, os.environ, len(config.replicas))
    asked = f"FLASHRL_CONFIG={variables.config}"
    if rank is None:
        options = shared_options(config)
        logger.info("%s: replica r uses config r mod %d", asked, len(config.replicas))
    else:
        options = logged_options(config.for_replica(rank), rank, asked)
    if arguments.quantization not in (None, NAME):
        raise ConfigError(
            f"{asked}, but the engine also has quantization={arguments.quantization!r}: remove one of them"
        )
    arguments.quantization = NAME
    override(arguments, {"quant_method": NAME, **options, **options_of(variables)}, asked)


def options_of(variables: Variables) -> dict[str, bool]:
    """Return the plugin's options that have a variable."""
    return {name: True for name in ("lm_head_fp32", "test_reload") if getattr(variables, name)}


def replica_of(arguments: Any, environment: dict[str, str], configs: int) -> int | None:
    """Return this engine's replica, from 0; None if its cores are several replicas, which determine it later."""
    if configs == 1:
        return 0
    if REPLICA_OF_VERL in environment:
        return int(environment[REPLICA_OF_VERL])
    if arguments.data_parallel_rank is not None:
        return arguments.data_parallel_rank
    if arguments.data_parallel_size > 1:
        return None
    if arguments.distributed_executor_backend == "external_launcher":  # of FlashRL: the caller is a rank
        rank = environment.get("RANK")
        if rank is None or not re.fullmatch("[0-9]+", rank):
            raise ConfigError(
                f"RANK={rank!r}: with external_launcher and several configs it must be the index of this rank"
            )
        return int(rank) // (arguments.tensor_parallel_size * arguments.pipeline_parallel_size)
    return 0


def logged_options(replica: Replica, rank: int, asked: str) -> dict[str, Any]:
    """Return the options of one replica; log which settings are applied and which are not."""
    logger.info("%s: replica %d uses fn=%s: %s", asked, rank, replica.fn, replica.function.meaning)
    for line in replica.disregarded():
        logger.info("not applied: %s", line)
    return replica.options()


def shared_options(config: Config) -> dict[str, Any]:
    """Return the options for engine cores, which select their replica by rank."""
    return {
        "replicas": [logged_options(replica, rank, "FLASHRL_CONFIG") for rank, replica in enumerate(config.replicas)]
    }


def override(arguments: Any, options: dict[str, Any], asked: str) -> None:
    """Put the plugin's options into `hf_overrides`, where vLLM looks for those of an unknown quantization method."""
    overrides = arguments.hf_overrides or {}
    if callable(overrides):
        raise ConfigError(f"{asked} does not support an hf_overrides function: use a dictionary")
    if overrides.get("quantization_config", options) != options:  # one set of arguments, two engines
        raise ConfigError(f"{asked}, but hf_overrides also has a quantization_config: remove one of them")
    arguments.hf_overrides = {**overrides, "quantization_config": options}
