"""Validation of a run's settings with verl's own checks, which otherwise run minutes after the start.

`python -m ascend_quant.integrations.verl.validate` reads Hydra overrides as JSON from stdin, composes and checks them
with the installed verl, first with verl's loader and checks, then with the checks that verl and our refits would make
in the job, and prints the problems as JSON in its last line. It starts no worker and reads no model.
"""

import json
import math
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ascend_quant.integrations.verl import cpu_settings
from ascend_quant.recipes import keys
from ascend_quant.recipes.keys import ACTOR, CORRECTION, ROLLOUT

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

EITHER = (f"{CORRECTION}.rollout_is_threshold",)  # a number, or a text such as 0.5_5.0
RESUME = ("auto", "disable", "resume_path")
ENGINE = "model_engine"  # the group that selects files of verl's configuration
MEGATRON = ("tensor_model", "pipeline_model", "context")  # the parallel dimensions that share one copy of the weights


def main() -> None:
    print("\n" + json.dumps(problems(json.load(sys.stdin))))


def problems(overrides: list[str]) -> list[str]:
    """List the problems of overrides, one line each; the first check that finds any ends the validation."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    try:
        given = [one for one in OverridesParser.create().parse_overrides(overrides) if one.key_or_group != ENGINE]
        tree = OmegaConf.to_container(composed([one for one in overrides if one.startswith(f"{ENGINE}=")]))
        added = [one.key_or_group for one in given if one.is_add() or one.is_force_add()]
        config = composed(list(map(_added, overrides)))
        if found := keys.unknown(OmegaConf.to_container(config), tree, added):
            return found
        made = OmegaConf.to_container(config, resolve=True)
    except Exception as error:  # the errors of Hydra, its parser and OmegaConf have no common base class
        return [_words(error)]
    for part in (types(given, tree, made), _verl(config), _shares(made), _refits(config)):
        if found := list(part):
            return found
    return []


def composed(overrides: list[str]) -> Any:
    """Compose verl's configuration as verl's main function does."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=overrides)


def _added(override: str) -> str:
    """Return an override that adds its key if verl lacks it, so that all such keys are found, and not only the first;
    groups and Hydra's own keys stay as they are."""
    return override if override.startswith(("+", "~", "-", "hydra.", f"{ENGINE}=")) else f"++{override}"


def types(given: "Iterable[Override]", tree: dict[str, Any], made: dict[str, Any]) -> Iterator[str]:
    """Yield values of another kind than verl's default; most of these are not checked before they are used.

    Numbers pass for true and false, as in verl, and so do references to other settings.
    """
    for key in dict.fromkeys(one.key_or_group for one in given if not one.is_delete()):
        default, value = _at(tree, key), _at(made, key)
        refers = any(isinstance(one, str) and one.startswith(("${", "???")) for one in (default, value))
        numbers = isinstance(default, int | float) and isinstance(value, int | float)
        if None in (default, value) or refers or numbers or key in EITHER:
            continue
        if _kind(default) != _kind(value):
            yield f"{key}={str(value)[:80]}: is {_kind(value)}, but verl's default is {_kind(default)}: {default}"


def _kind(value: Any) -> str:
    """Return a value's kind in words; a text and a list of texts are the same kind, as are 1 and 1.0."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, bool):
        return "true or false"
    return "a number" if isinstance(value, int | float) else "a text or a list"


def _shares(made: dict[str, Any]) -> Iterator[str]:
    """Yield a mini-batch that is not divisible among the data-parallel workers: verl fails after the first rollout."""
    actor, trainer = _at(made, ACTOR), made["trainer"]
    if actor["strategy"] == "megatron":
        ranks = math.prod(actor["megatron"][f"{kind}_parallel_size"] for kind in MEGATRON)
    else:
        ranks = max(actor["ulysses_sequence_parallel_size"], actor["fsdp_config"]["ulysses_sequence_parallel_size"])
    workers = trainer["nnodes"] * trainer["n_gpus_per_node"] // ranks
    mini, n = actor["ppo_mini_batch_size"], _at(made, f"{ROLLOUT}.n")
    if workers and mini * n % workers:
        samples = f"{ACTOR}.ppo_mini_batch_size={mini} x {ROLLOUT}.n={n} = {mini * n} samples"
        yield f"{samples} are not divisible by {workers} workers: choose a multiple"


def _verl(config: Any) -> Iterator[str]:
    """Yield the problems that verl's checks, our main's checks, and lookups of names find."""
    try:
        from verl.trainer.ppo.utils import need_reference_policy
        from verl.utils.config import omega_conf_to_dataclass, validate_config

        validate_config(config, need_reference_policy(config), use_critic=False)  # a critic's check reads its model
        cpu_settings.check(config, need_reference_policy(config))
        for part in (config.actor_rollout_ref.rollout, config.algorithm):
            omega_conf_to_dataclass(part)
        _look_up(config)
    except Exception as error:  # AssertionError, ValueError, and Hydra's wrappers of them
        yield _words(error)
    if not config.trainer.use_v1:
        yield "trainer.use_v1=False: verl's deprecated trainer cannot log refits: set it to True"
    if config.trainer.resume_mode not in RESUME:
        yield f"trainer.resume_mode={config.trainer.resume_mode}: choose from {', '.join(RESUME)}"


def _refits(config: Any) -> Iterator[str]:
    """Yield inconsistencies of our own settings, which verl passes on without checking them."""
    from ascend_quant.integrations.verl import settings
    from ascend_quant.integrations.verl.training import qat
    from ascend_quant.refit import RefitError

    try:
        qat.wanted(config)
        if settings.wants_refits(config):
            settings.check_values(config)
    except (RefitError, ValueError) as error:  # ValueError is raised for FLASHRL_* variables
        yield _words(error)


def _look_up(config: Any) -> None:
    """Look up everything that the configuration refers to by name; verl raises an error if a name does not exist."""
    import torch
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn, kl_penalty
    from verl.utils.tracking import Tracking

    actor, logger = config.actor_rollout_ref.actor, config.trainer.logger
    get_adv_estimator_fn(config.algorithm.adv_estimator)
    get_policy_loss_fn(actor.policy_loss.loss_mode)
    get_reward_manager_cls(config.reward.reward_manager.name)
    if actor.use_kl_loss:
        kl_penalty(torch.zeros(1), torch.zeros(1), actor.kl_loss_type)
    for name in [logger] if isinstance(logger, str) else logger:
        if name not in Tracking.supported_backend:
            raise ValueError(f"trainer.logger: {name}: choose from {', '.join(Tracking.supported_backend)}")


def _at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _words(error: BaseException) -> str:
    """Format an error's message in one line, with its class if the message is short."""
    words = " ".join(str(error).split())
    return words[:600] if len(words.split()) > 2 else f"{type(error).__name__}: {words}"


if __name__ == "__main__":
    main()
