"""What a run's configuration says about refits: whether the rollout is ours, and that all it needs is there."""

import os
from importlib.metadata import entry_points
from typing import Any

from ascend_quant.integrations.vllm import NAME as QUANTIZATION
from ascend_quant.refit import RefitError

PLUGIN_GROUP = "vllm.general_plugins"


def wants_refits(config: Any) -> bool:
    """Whether the run's rollout engine is to be built by our vLLM plugin."""
    rollout = config.actor_rollout_ref.rollout
    engine = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
    overrides = (engine.get("hf_overrides") or {}).get("quantization_config") or {}
    return QUANTIZATION in (rollout.get("quantization"), engine.get("quantization"), overrides.get("quant_method"))


def check(config: Any) -> None:
    """Raise one clear error before anything starts, when a run that wants refits cannot have them."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name != "vllm":
        raise RefitError(
            f"rollout.name={rollout.name} cannot refit: quantization {QUANTIZATION} needs rollout.name=vllm"
        )
    if (rollout.get("disaggregation") or {}).get("enabled"):
        raise RefitError(f"rollout.disaggregation is not supported with quantization {QUANTIZATION}: set it to false")
    if not any(point.name == QUANTIZATION for point in entry_points(group=PLUGIN_GROUP)):
        raise RefitError(
            f"vLLM cannot find the plugin {QUANTIZATION}: install this project with pip in the engine's environment"
        )
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and QUANTIZATION not in allowed.split(","):
        raise RefitError(f"VLLM_PLUGINS={allowed!r} leaves out {QUANTIZATION}: add it, or unset VLLM_PLUGINS")
    model = os.path.expanduser(config.actor_rollout_ref.model.path)
    if model.startswith(("/", "./", "../")) and not os.path.exists(os.path.join(model, "config.json")):
        raise RefitError(f"actor_rollout_ref.model.path={model} has no config.json: give a model folder")
