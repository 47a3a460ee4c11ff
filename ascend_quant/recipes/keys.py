"""Keys that verl's config does not have: Hydra takes `+recipee=X` and a misspelt key of a recipe's file in silence.

What verl leaves open, as it hands it on to vLLM, Megatron and Ray, may hold any key, and so may a mapping that is empty
in verl's config. A setting that a command line adds with + is taken as meant, but not at the top level.
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
EAGER = f"{ROLLOUT}.enforce_eager"  # false unless it is given
CORRECTION = "algorithm.rollout_correction"
VLLM = f"{ROLLOUT}.engine_kwargs.vllm"
QUANTIZATION = f"{VLLM}.hf_overrides.quantization_config"
OURS = f"{ROLLOUT}.engine_kwargs.ascend_quant"
ENVIRONMENT = "ray_kwargs.ray_init.runtime_env.env_vars"
# Open mappings of verl, and the keys that its defaults have in them.
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
UNLISTED = (f"{ROLLOUT}.enable_sleep_mode",)  # verl's engine knows it, and its defaults do not name it
NODE = "recipe"


def plus(key: str) -> str:
    """Return "+" for a key that verl's defaults do not have, in a place that verl leaves open."""
    if key in UNLISTED:
        return "+"
    for mapping, present in OPEN.items():
        if key.startswith(f"{mapping}."):
            return "" if key.removeprefix(f"{mapping}.") in present else "+"
    return ""


def unknown(made: Mapping[str, Any], bare: Mapping[str, Any], added: Collection[str] = ()) -> list[str]:
    """List keys of a composed config that verl's own does not have, a line each with the nearest that it has.

    Args:
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
