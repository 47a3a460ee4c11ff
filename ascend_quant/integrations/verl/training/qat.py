"""The fake quantization (QAT) that a run's configuration selects for its actor, checked against the rollout.

    +actor_rollout_ref.rollout.engine_kwargs.ascend_quant.qat=int4_g128

slime's environment variables select it too, see `ascend_quant.qat.variables`. With `int8_exact` the actor computes the
engine's INT8 policy bit for bit, see exact/settings.py. The option is among the rollout's because verl's actor rejects
unknown settings, and because both must use the same scheme. Layers that the rollout ignores are ignored in training
too.
"""

import os
from typing import Any, NamedTuple

from ascend_quant.engine.options import EXACT_SCHEME, Options
from ascend_quant.flashrl.config import resolve
from ascend_quant.flashrl.variables import from_environment
from ascend_quant.integrations.verl import EXACT
from ascend_quant.integrations.verl.settings import QUANTIZATION, engine_options, options_of, wants_refits
from ascend_quant.integrations.verl.training.exact import settings as exact_settings
from ascend_quant.qat import SCHEMES, scheme_of_environment
from ascend_quant.qat.variables import FLAG
from ascend_quant.refit import RefitError

OPTION = f"rollout.engine_kwargs.{QUANTIZATION}.qat"
STRATEGIES = ("fsdp", "fsdp2", "megatron")


class FakeQuantization(NamedTuple):
    """Settings of QAT: the fake quantization of the actor's layers.

    Attributes:
        scheme: name of the scheme.
        ignore: layers that keep their dtype, in vLLM's patterns.
        warning: a warning for the user; may be empty.
        ranks: tensor-parallel size of the engine whose policy the actor computes bit for bit; None if only weights are
            fake-quantized.
    """

    scheme: str
    ignore: tuple[str, ...] = ()
    warning: str = ""
    ranks: int | None = None


class Served(NamedTuple):
    """The scheme in which a rollout replica holds its weights (or vLLM's name for a quantization that is not ours), and
    the layers that it ignores."""

    scheme: str
    ignore: tuple[str, ...] = ()


def wanted(config: Any) -> FakeQuantization | None:
    """Return the fake quantization (QAT) that a run asks for; None if it asks for none.

    Raises:
        RefitError: it is not supported, or differs from the rollout's.
        QatVariableError: one of slime's variables has an invalid value.
    """
    scheme = _asked(config)
    if exact_settings.is_strict(config.actor_rollout_ref.rollout) and scheme != EXACT:
        raise RefitError(f"rollout.engine_kwargs.{QUANTIZATION}.strict=true works only with {exact_settings.OPTION}")
    if scheme is None:
        return None
    _check(config, scheme)
    if scheme == EXACT:
        return _exact(config)
    served = _served(config)
    if other := [replica.scheme for replica in served if replica.scheme not in (scheme, "bf16")]:
        raise RefitError(
            f"{OPTION}: the actor would train for {scheme}, but the rollout serves {other[0]}: use the same "
            "scheme for both"
        )
    plain = any(replica.scheme == "bf16" for replica in served)
    warning = f"the actor trains with {scheme} fake quantization, but the rollout serves bf16" if plain else ""
    return FakeQuantization(scheme, _ignored(served, scheme), warning)


def _exact(config: Any) -> FakeQuantization:
    """Return the settings of an actor that computes the engine's INT8 policy."""
    replicas = _replicas(config) if wants_refits(config) and from_environment(os.environ).config is None else []
    if not replicas:
        raise RefitError(
            f"{exact_settings.OPTION} needs rollout.quantization={QUANTIZATION}, and FLASHRL_CONFIG must be unset"
        )
    for replica in replicas:
        exact_settings.check_engine(replica)
    return FakeQuantization(EXACT_SCHEME, ranks=exact_settings.ranks_of(config))


def _ignored(served: list[Served], scheme: str) -> tuple[str, ...]:
    ignored = {replica.ignore for replica in served if replica.scheme == scheme} or {()}
    if len(ignored) > 1:
        raise RefitError(
            f"{OPTION}={scheme}: replicas with this scheme ignore different layers: give them the same list"
        )
    return ignored.pop()


def _asked(config: Any) -> str | None:
    option, variable = options_of(config.actor_rollout_ref.rollout).get("qat"), scheme_of_environment(os.environ)
    if option is not None and option not in (choices := (*SCHEMES, EXACT)):
        raise RefitError(
            f"{OPTION}={option}: not supported; supported: {', '.join(choices)}. Other rollouts need importance "
            "weights per token (algorithm.rollout_correction.rollout_is=token, or correction=token in a recipe)"
        )
    if None not in (option, variable) and option != variable:
        raise RefitError(f"{OPTION}={option}, but {FLAG} selects {variable}: remove one of them")
    return option or variable


def _check(config: Any, scheme: str) -> None:
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    if actor.strategy not in STRATEGIES:
        raise RefitError(f"{OPTION}={scheme} needs actor.strategy={' or '.join(STRATEGIES)}, not {actor.strategy}")
    if model.get("lora_rank", 0) > 0 or (model.get("lora") or {}).get("rank", 0) > 0:
        raise RefitError(
            f"{OPTION}={scheme} does not work with LoRA, which does not train the quantized weights: remove one of them"
        )
    engine = actor.get("megatron" if actor.strategy == "megatron" else "fsdp_config") or {}
    if any((part.get("qat") or {}).get("enable", False) for part in (actor, engine)):
        raise RefitError(f"{OPTION}={scheme}, but verl's own qat (NVFP4) is enabled too: disable one of them")


def _served(config: Any) -> list[Served]:
    """Return how each replica of the rollout stores its weights, as far as the configuration distinguishes them."""
    rollout = config.actor_rollout_ref.rollout
    if not wants_refits(config):
        return [Served(rollout.get("quantization") or "bf16")]
    flashrl = from_environment(os.environ).config
    if flashrl is not None:
        return [Served(one.function.scheme) for one in resolve(flashrl).replicas]  # FlashRL has no int4
    return [Served(one.scheme, tuple(one.ignore)) for one in _replicas(config)]


def _replicas(config: Any) -> list[Options]:
    """Return the quantization options of each replica of the rollout."""
    options = Options.of(_plain(engine_options(config.actor_rollout_ref.rollout)))
    return [options.of_replica(rank) for rank in range(max(1, len(options.replicas)))]


def _plain(given: Any) -> dict[str, Any]:
    from omegaconf import DictConfig, OmegaConf

    return OmegaConf.to_container(given, resolve=True) if isinstance(given, DictConfig) else dict(given)
