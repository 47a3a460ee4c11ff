"""Our settings in a run's configuration (`rollout.engine_kwargs.ascend_quant`): reading and validation."""

import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, NamedTuple

import torch

from ascend_quant.engine.options import NAME as QUANTIZATION
from ascend_quant.engine.options import Options
from ascend_quant.flashrl.config import resolve
from ascend_quant.flashrl.variables import from_environment
from ascend_quant.integrations.verl import OPTIONS
from ascend_quant.kv_cache.scales import FP8, INT8, Form
from ascend_quant.refit import RefitError
from ascend_quant.schemes import SCHEMES, Scheme
from ascend_quant.transfer.prequantized import SCHEMES_SENT

BF16, DELTA = "bf16", "delta"
PLUGIN_GROUP = "vllm.general_plugins"
NAIVE = "naive"  # verl's checkpoint engine for colocated engines
HOST, DEVICE = "host", "device"
AUTO, RELEASE = "auto", "release"
CASTING = ("kimi_ckpt_engine", "mooncake")  # verl's checkpoint engines that convert everything to BF16


def wants_refits(config: Any) -> bool:
    """Return whether our vLLM plugin is to build the run's rollout engine, by its settings or by FLASHRL_CONFIG.

    Raises:
        VariableError, ConfigError: a FLASHRL_* variable is unknown, or has an invalid value.
    """
    return QUANTIZATION in _quantizations(config.actor_rollout_ref.rollout).values() or _flashrl_wants_refits()


def _flashrl_wants_refits() -> bool:
    """Return whether FLASHRL_CONFIG is set; our plugin supports every function that it may name."""
    asked = from_environment(os.environ).config
    if asked is None:
        return False
    resolve(asked)  # reports an invalid value here, not later in an engine
    return True


def _quantizations(rollout: Any) -> dict[str, str]:
    """Return the quantizations named by the settings, by setting."""
    engine, overrides = _of_vllm(rollout), engine_options(rollout)
    named = {
        "rollout.quantization": rollout.get("quantization"),
        "rollout.engine_kwargs.vllm.quantization": engine.get("quantization"),
        "rollout.engine_kwargs.vllm.hf_overrides.quantization_config.quant_method": overrides.get("quant_method"),
    }
    return {setting: name for setting, name in named.items() if name is not None}


def wants_proof(rollout: Any) -> bool:
    """Return whether weights are to be verified by digests (`transfer/checksums.py`); on unless switched off with

    +actor_rollout_ref.rollout.engine_kwargs.ascend_quant.proof=False

    Args:
        rollout: verl's rollout settings, as the trainer and the engine's server have them.

    Raises:
        RefitError: an option is unknown, or a value is not True or False.
    """
    return flag(rollout, "proof", default=True)


def sent_as(rollout: Any) -> Scheme | None:
    """Return the scheme of the pre-quantized weights that the trainer sends; None if all weights are BF16.

    +actor_rollout_ref.rollout.engine_kwargs.ascend_quant.send=int8

    With `delta` it is the rollout's own scheme, if that has a scale per row.

    Raises:
        RefitError: the value is not bf16, delta or a scheme with a scale per row.
    """
    asked = _asked_to_send(rollout)
    if asked == DELTA:
        served = engine_options(rollout).get("scheme", Options.scheme)
        return SCHEMES[served] if served in SCHEMES_SENT else None
    return None if asked == BF16 else SCHEMES[asked]


class Patches(NamedTuple):
    """Settings of a delta weight sync, which sends changed weights to disaggregated engines.

    Attributes:
        base_on: device on which both ends keep the bytes of the last sync; None for the weights' own device.
        beside_engines: whether the engines keep them on their device if they fit.
    """

    base_on: torch.device | None
    beside_engines: bool = False


def patches_of(rollout: Any) -> Patches | None:
    """Return the settings of a delta weight sync; None unless `send` is delta.

    +actor_rollout_ref.rollout.engine_kwargs.ascend_quant.base_on=device

    The trainer keeps its base in host memory unless `base_on` is device. An engine keeps its base on the device as far
    as that fits beside the engine, unless `base_on` is host.

    Raises:
        RefitError: the value is invalid.
    """
    where = options_of(rollout).get("base_on", AUTO)
    if where not in (AUTO, HOST, DEVICE):
        raise RefitError(f"rollout.engine_kwargs.{QUANTIZATION}.base_on={where!r}: choose {AUTO}, {HOST} or {DEVICE}")
    if _asked_to_send(rollout) != DELTA:
        return None
    return Patches(None if where == DEVICE else torch.device("cpu"), where == AUTO)


def bucket_bytes(rollout: Any) -> int:
    """Return the size in bytes of verl's buckets."""
    return rollout.checkpoint_engine.update_weights_bucket_megabytes << 20


def keeps_memory(rollout: Any) -> bool:
    """Return whether the trainer keeps its cached memory during a sync if it fits, instead of freeing it.

    +actor_rollout_ref.rollout.engine_kwargs.ascend_quant.memory=release

    Raises:
        RefitError: the value is invalid.
    """
    asked = options_of(rollout).get("memory", AUTO)
    if asked not in (AUTO, RELEASE):
        raise RefitError(f"rollout.engine_kwargs.{QUANTIZATION}.memory={asked!r}: choose {AUTO} or {RELEASE}")
    return asked == AUTO


def share_of_engine(rollout: Any, device: str) -> float | None:
    """Return an engine's share of device memory (`gpu_memory_utilization`), if the trainer may keep a cache beside it.

    Args:
        device: verl's `trainer.device`.

    Returns:
        None if the trainer has to free all cached memory, as in verl, or if the share is unknown: vLLM ignores
        `gpu_memory_utilization` if the KV cache's size in bytes is set.

    Raises:
        RefitError: see `keeps_memory`.
    """
    keeps, engine = keeps_memory(rollout), _of_vllm(rollout)
    if not keeps or device == "cpu" or engine.get("kv_cache_memory_bytes") is not None:
        return None
    return engine.get("gpu_memory_utilization", rollout.get("gpu_memory_utilization"))


def _asked_to_send(rollout: Any) -> str:
    asked, choices = options_of(rollout).get("send", BF16), (BF16, *SCHEMES_SENT, DELTA)
    if asked not in choices:
        raise RefitError(
            f"rollout.engine_kwargs.{QUANTIZATION}.send={asked!r} is not supported; choose one of: {', '.join(choices)}"
        )
    return asked


def _of_vllm(rollout: Any) -> Mapping[str, Any]:
    """Return vLLM's own arguments, `rollout.engine_kwargs.vllm`."""
    return (rollout.get("engine_kwargs") or {}).get("vllm") or {}


def engine_options(rollout: Any) -> Mapping[str, Any]:
    """Return the rollout engines' quantization options (`hf_overrides.quantization_config`)."""
    return (_of_vllm(rollout).get("hf_overrides") or {}).get("quantization_config") or {}


def scales_of_cache(rollout: Any, device: str) -> Form | None:
    """Return the form of the KV cache scales that the trainer sends; None if the cache has no such scales.

    Args:
        device: verl's `trainer.device`: int8 caches have such scales on NPUs; elsewhere their scales are in the cache.
    """
    asked = engine_options(rollout).get("kv_cache")
    if _of_vllm(rollout).get("kv_cache_dtype") in ("fp8", "fp8_e4m3") or asked == "fp8":
        return FP8
    return INT8 if asked == "int8" and device == "npu" else None


def flag(rollout: Any, name: str, default: bool) -> bool:
    """Return one of our options that is True or False; raise RefitError for another value or an unknown option."""
    value = options_of(rollout).get(name, default)
    if not isinstance(value, bool):
        raise RefitError(f"rollout.engine_kwargs.{QUANTIZATION}.{name}={value!r} must be True or False")
    return value


def options_of(rollout: Any) -> Mapping[str, Any]:
    """Return `rollout.engine_kwargs.ascend_quant`; raise RefitError for an unknown option."""
    options = (rollout.get("engine_kwargs") or {}).get(QUANTIZATION) or {}
    if unknown := [name for name in options if name not in OPTIONS]:
        raise RefitError(
            f"unknown option rollout.engine_kwargs.{QUANTIZATION}.{unknown[0]}; the options are: {', '.join(OPTIONS)}"
        )
    return options


def check(config: Any) -> None:
    """Raise one error, before anything starts, if a run that wants refits cannot have them.

    Raises:
        RefitError: a setting is invalid, or something is missing on this host.
    """
    check_values(config)
    _check_host(config.actor_rollout_ref.model.path)


def check_values(config: Any) -> None:
    """Check the parts of a configuration that can be checked on any host, also if the run is only planned.

    Raises:
        RefitError: a setting is invalid; the message says what to set instead.
    """
    rollout = config.actor_rollout_ref.rollout
    if rollout.name != "vllm":
        raise RefitError(
            f"rollout.name={rollout.name} does not support refits: quantization {QUANTIZATION} needs rollout.name=vllm"
        )
    for setting, name in _quantizations(rollout).items():
        if name != QUANTIZATION:
            raise RefitError(f"{setting}={name}, but another setting selects {QUANTIZATION}: remove one of them")
    if (rollout.get("disaggregation") or {}).get("enabled"):
        raise RefitError(f"rollout.disaggregation is not supported with quantization {QUANTIZATION}: set it to false")
    carrier = (rollout.get("checkpoint_engine") or {}).get("backend")
    if carrier == "delta_sharded":
        raise RefitError(
            "rollout.checkpoint_engine.backend=delta_sharded patches BF16 weights in place, which do not "
            f"exist with quantization {QUANTIZATION}: choose another backend (naive, nccl, ...)"
        )
    proves = wants_proof(rollout)  # raises an error for an invalid value
    if (sent := sent_as(rollout)) is not None:
        _check_sent(rollout, sent)
    share_of_engine(rollout, config.trainer.device)
    if patches_of(rollout) is not None and carrier in (None, NAIVE):
        raise RefitError(
            f"rollout.engine_kwargs.{QUANTIZATION}.send={DELTA} needs disaggregated engines, but the engines "
            "are colocated with the trainer (rollout.checkpoint_engine.backend=naive): remove it, or set "
            "another backend"
        )
    form = scales_of_cache(rollout, config.trainer.device)
    if carrier in CASTING and (proves or sent is not None or form is not None):
        raise RefitError(
            f"rollout.checkpoint_engine.backend={carrier} casts all tensors to BF16, including quantized "
            "weights, checksums and KV cache scales: choose another backend (nccl, nixl)"
        )
    if form is not None:
        _check_looked_at(config.actor_rollout_ref.actor.strategy, form)


def _check_host(model: str) -> None:
    """Raise RefitError unless this host has the plugin, allows to load it, and has the model (if it is a path)."""
    if not any(point.name == QUANTIZATION for point in entry_points(group=PLUGIN_GROUP)):
        raise RefitError(
            f"vLLM cannot find the plugin {QUANTIZATION}: install this project with pip in the engine's environment"
        )
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and QUANTIZATION not in allowed.split(","):
        raise RefitError(f"VLLM_PLUGINS={allowed!r} does not list {QUANTIZATION}: add it, or unset VLLM_PLUGINS")
    model = os.path.expanduser(model)
    if model.startswith(("/", "./", "../")) and not os.path.exists(os.path.join(model, "config.json")):
        raise RefitError(f"actor_rollout_ref.model.path={model} has no config.json: give a model folder")


def _check_sent(rollout: Any, sent: Scheme) -> None:
    """Raise RefitError if engines cannot accept a scheme's pre-quantized weights."""
    option = f"rollout.engine_kwargs.{QUANTIZATION}.send={sent.name}"
    given = engine_options(rollout)
    served = given.get("scheme", Options.scheme)
    if served != sent.name:
        raise RefitError(f"{option}, but the rollout serves {served}: use the same scheme for both, or remove send")
    if given.get("profile") is not None:
        raise RefitError(
            f"{option} does not work with a profile, which has to smooth weights before quantization: remove "
            "one of them"
        )


def _check_looked_at(strategy: str, form: Form) -> None:
    """Raise RefitError unless this trainer's attention can be observed for KV cache scales."""
    if strategy not in ("fsdp", "fsdp2"):
        raise RefitError(
            f"actor.strategy={strategy} with an {form.cache} KV cache: its scales can be measured only in "
            "transformers' attention (fsdp, fsdp2); set kv_cache=auto"
        )
