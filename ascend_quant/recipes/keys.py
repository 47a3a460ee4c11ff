"""Names of verl's keys, and the check for keys that verl's config does not have.

Hydra silently accepts `+recipee=X`, and a misspelt key in a recipe's file. The check allows any key in the mappings
that verl passes on to vLLM, Megatron and Ray, and in mappings that are empty in verl's config. It also allows keys that
the command line adds with +, except at the top level.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
MEGATRON = f"{ACTOR}.megatron"
TRANSFORMER = f"{MEGATRON}.override_transformer_config"
DATA_PARALLEL = f"{MEGATRON}.override_ddp_config"
OPTIMIZER = f"{ACTOR}.optim.override_optimizer_config"
REFERENCE = "actor_rollout_ref.ref"
POLICY_LOSS = f"{ACTOR}.policy_loss"
RANKS = f"{ROLLOUT}.tensor_model_parallel_size"
EXPERT_RANKS = f"{ROLLOUT}.expert_parallel_size"
EAGER = f"{ROLLOUT}.enforce_eager"  # false by default
CORRECTION = "algorithm.rollout_correction"
VLLM = f"{ROLLOUT}.engine_kwargs.vllm"
QUANTIZATION = f"{VLLM}.hf_overrides.quantization_config"
OURS = f"{ROLLOUT}.engine_kwargs.ascend_quant"
ENVIRONMENT = "ray_kwargs.ray_init.runtime_env.env_vars"
# Mappings in which verl accepts any key, with the keys that verl's defaults contain.
OPEN: dict[str, tuple[str, ...]] = {
    TRANSFORMER: (
        "recompute_granularity",
        "recompute_modules",
        "recompute_method",
        "recompute_num_layers",
        "attention_backend",
    ),
    DATA_PARALLEL: (),
    OPTIMIZER: (),
    VLLM: (),
    ENVIRONMENT: (),
    f"{POLICY_LOSS}.rollout_correction": (),
    f"{MODEL}.override_config": (),
    OURS: (),
    "data.apply_chat_template_kwargs": (),
    "reward.reward_kwargs": (),
    "ray_kwargs.ray_init": ("num_cpus", "runtime_env.py_executable"),
}
UNLISTED = (f"{ROLLOUT}.enable_sleep_mode",)  # verl's engine reads this key, but verl's defaults do not contain it
NODE = "recipe"


def plus(key: str) -> str:
    """Return "+" for a key that verl accepts but does not have in its defaults, else ""."""
    if key in UNLISTED:
        return "+"
    for mapping, present in OPEN.items():
        if key.startswith(f"{mapping}."):
            return "" if key.removeprefix(f"{mapping}.") in present else "+"
    return ""


def unknown(made: Mapping[str, Any], bare: Mapping[str, Any], added: Collection[str] = ()) -> list[str]:
    """List keys of a composed config that verl's own config does not have; one line each, with the closest valid key.

    Args:
        made: the composed config.
        bare: verl's config without a recipe.
        added: keys that the command line adds with +.
    """
    return list(_unknown(made, bare, tuple(added), ""))


def _unknown(made: Mapping[str, Any], bare: Mapping[str, Any], added: tuple[str, ...], above: str) -> Iterator[str]:
    for key, value in made.items():
        path = f"{above}{key}"
        if path == NODE or path in UNLISTED or path in OPEN or (above and path in added):
            continue
        if key not in bare:
            deeper = above and isinstance(value, Mapping) and any(one.startswith(f"{path}.") for one in added)
            if not deeper and not plus(path):
                near = difflib.get_close_matches(str(key), [*map(str, bare), *([] if above else [NODE])], n=1)
                hint = f"did you mean {above}{near[0]}?" if near else "leave it out"
                yield f"{path}: verl has no such setting: {hint}"
        elif isinstance(value, Mapping) and isinstance(bare[key], Mapping) and bare[key]:
            yield from _unknown(value, bare[key], added, f"{path}.")
