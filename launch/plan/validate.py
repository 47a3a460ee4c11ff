"""`python -m launch.plan.validate`: verl's overrides as JSON on stdin; what is wrong, as JSON, is the last line out.

verl's own loader and checks come first, then what verl, Ray and our refits find out in the job, minutes after the
start. No worker is started and no model is looked at.
"""

import difflib
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from launch.recipes.overrides import OPEN
from launch.recipes.verl import ACTOR, ENVIRONMENT, ROLLOUT, VLLM, leaves
from launch.variables import without_secrets_in

RESUME = ("auto", "disable", "resume_path")
ENGINE = "model_engine"  # chooses files of verl's configuration
OF_A_NEW_CLUSTER = ("num_cpus", "num_gpus", "resources", "object_store_memory", "_temp_dir")


def main() -> None:
    found = problems(json.load(sys.stdin))
    print("\n" + json.dumps([without_secrets_in(line) for line in found]))


def problems(overrides: list[str]) -> list[str]:
    """A line for each thing; what cannot be read, or be of another kind, ends it."""
    from omegaconf import OmegaConf

    try:
        given = [one for one in parsed(overrides) if one.key_or_group != ENGINE]
        tree = defaults(tuple(one for one in overrides if one.startswith(f"{ENGINE}=")))
        if found := list(_unknown([(one.key_or_group, one.is_add() or one.is_force_add()) for one in given], tree)):
            return found
        config = composed(overrides)
        made = OmegaConf.to_container(config, resolve=True)
    except Exception as error:  # hydra, its parser and omegaconf have classes without a common one
        return [_words(error)]
    keys = [one.key_or_group for one in given if not one.is_delete()]
    for part in (_types(keys, tree, made), _shares(made), _ray(made), _verl(config), _refits(config)):
        if found := list(part):
            return found
    return []


def composed(overrides: list[str]) -> Any:
    """verl's configuration, as its main would compose it."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=overrides)


@cache
def defaults(engine: tuple[str, ...]) -> dict[str, Any]:
    """verl's own values, references not looked up."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(composed(list(engine)), resolve=False)


def parsed(overrides: list[str]) -> list[Any]:
    """The overrides as hydra reads them."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_overrides(overrides)


def _unknown(given: Iterable[tuple[str, bool]], tree: dict[str, Any]) -> Iterator[str]:
    """What verl's configuration has not, or, where it was added, what no source names that would read it."""
    there = [key for key, _ in leaves(tree)]
    for key, added in given:
        if "@" in key or "/" in key or key in there or _at(tree, key) is not None:
            continue
        new, package, file = _new_names(tree, key), "verl", "**/*.py"
        if key.startswith(f"{VLLM}."):
            new, package, file = [key.removeprefix(f"{VLLM}.").partition(".")[0]], "vllm", "engine/arg_utils.py"
        elif key.startswith(tuple(OPEN)):
            continue
        if not added or not all(named(name, package, file) for name in new):
            near = difflib.get_close_matches(key, there, n=1)
            yield f"{key}: {package} has no such setting" + (f": did you mean {near[0]}?" if near else "")


def _new_names(tree: dict[str, Any], key: str) -> list[str]:
    """The parts of a key from the first on that the tree has not."""
    parts = key.split(".")
    known = next(at for at in range(len(parts), -1, -1) if not at or _at(tree, ".".join(parts[:at])) is not None)
    return parts[known:]


def named(name: str, package: str, files: str) -> bool:
    """Whether one of a package's files has the name; where the package is not installed, nobody can tell."""
    found = find_spec(package)
    if found is None:
        return True
    word = re.compile(rf"\b{re.escape(name)}\b")
    sources = Path(found.submodule_search_locations[0]).glob(files)
    return any(word.search(file.read_text(errors="replace")) for file in sources)


def _types(keys: Iterable[str], tree: dict[str, Any], made: dict[str, Any]) -> Iterator[str]:
    """verl's own defaults say of which kind a value is; for most of them nothing else does before it is used."""
    for key in dict.fromkeys(keys):
        default, value = _at(tree, key), _at(made, key)
        if not _same_kind(default, value):
            kind = "a mapping" if isinstance(default, dict) else repr(default)
            yield f"{key}={str(value)[:80]}: {type(value).__name__}, and verl's default is {kind}"


def _same_kind(default: Any, value: Any) -> bool:
    if isinstance(default, dict):
        return isinstance(value, dict)
    if default is None or value is None or (isinstance(default, str) and default.startswith(("${", "???"))):
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, int | float):  # a share may be 0 or 1 by default
        return isinstance(value, int | float)
    if isinstance(default, list) or isinstance(value, list):  # a file or several, a logger or several
        return not isinstance(default, dict | int) and not isinstance(value, dict)
    return isinstance(value, type(default))


def _shares(made: dict[str, Any]) -> Iterator[str]:
    """An update is shared out among the workers that hold the same weights, and cut into micro-batches."""
    actor, trainer = _at(made, ACTOR), made["trainer"]
    batch, mini, n = made["data"]["train_batch_size"], actor["ppo_mini_batch_size"], _at(made, f"{ROLLOUT}.n")
    if not all(isinstance(one, int) and one > 0 for one in (batch, mini, n)):
        return
    if batch < mini:
        yield f"data.train_batch_size={batch} is less than {ACTOR}.ppo_mini_batch_size={mini}"
        return
    devices = trainer["nnodes"] * trainer["n_gpus_per_node"]
    if actor["strategy"] == "megatron":
        parts = [actor["megatron"][f"{kind}_parallel_size"] for kind in ("tensor_model", "pipeline_model", "context")]
        workers = devices // math.prod(parts)
    else:
        shared = max(actor["ulysses_sequence_parallel_size"], actor["fsdp_config"]["ulysses_sequence_parallel_size"])
        workers = devices // shared
    if workers and mini * n % workers:
        samples = f"{ACTOR}.ppo_mini_batch_size={mini} x {ROLLOUT}.n={n} = {mini * n} samples"
        yield f"{samples} cannot be shared out among {workers} workers: choose a multiple"
    elif workers and not actor["use_dynamic_bsz"]:
        yield from _micro(made, f"{ACTOR}.ppo_micro_batch_size_per_gpu", mini * n // workers)
        yield from _micro(made, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", batch * n // workers)


def _micro(made: dict[str, Any], key: str, samples: int) -> Iterator[str]:
    if (size := _at(made, key)) and samples % size:
        yield f"{key}={size}: each worker has {samples} samples, no multiple of it"


def _ray(made: dict[str, Any]) -> Iterator[str]:
    """What ray.init would refuse: verl hands it `ray_kwargs.ray_init`, and the cluster is there already."""
    import inspect

    import ray

    given = made["ray_kwargs"]["ray_init"]
    known = inspect.signature(ray.init).parameters
    for name, value in given.items():
        if name in OF_A_NEW_CLUSTER and value is not None:
            yield f"ray_kwargs.ray_init.{name}={value}: the cluster of the run is there already: leave it out"
        elif name not in known and not name.startswith("_"):
            yield f"ray_kwargs.ray_init.{name}: ray.init has no such argument"
    for name, value in (_at(made, ENVIRONMENT) or {}).items():
        if not isinstance(value, str):
            yield f"{ENVIRONMENT}.{name}: is a {type(value).__name__}, and Ray takes text alone: quote it, as \"'1'\""


def _verl(config: Any) -> Iterator[str]:
    """verl's own checks, those of our main, and names that verl looks up late."""
    try:
        from verl.trainer.ppo.utils import need_reference_policy
        from verl.utils.config import omega_conf_to_dataclass, validate_config

        validate_config(config, need_reference_policy(config), use_critic=False)  # a critic's looks for its model
        for part in (config.actor_rollout_ref.rollout, config.algorithm):
            omega_conf_to_dataclass(part)
        _look_up(config)
    except Exception as error:  # asserts, ValueError, and what hydra makes of them
        yield _words(error)
    if not config.trainer.use_v1:
        yield "trainer.use_v1=False: verl's deprecated trainer cannot log refits: leave it True"
    if config.trainer.resume_mode not in RESUME:
        yield f"trainer.resume_mode={config.trainer.resume_mode}: choose from {', '.join(RESUME)}"


def _refits(config: Any) -> Iterator[str]:
    """What our own settings, which verl hands on unread, cannot be together."""
    from ascend_quant.integrations.verl import settings
    from ascend_quant.refit import RefitError

    try:
        if settings.wants_refits(config):
            settings.check_values(config)
    except (RefitError, ValueError) as error:  # the latter of FLASHRL_* variables
        yield _words(error)


def _look_up(config: Any) -> None:
    """Find everything that a name of the configuration stands for; verl raises where there is no such thing."""
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
    """Its message in one line, with its class where that says more."""
    words = " ".join(str(error).split())
    return words[:600] if len(words.split()) > 2 else f"{type(error).__name__}: {words}"


if __name__ == "__main__":
    main()
