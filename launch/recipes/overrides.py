"""The Hydra overrides of verl's command line: those that a recipe produces, and those that a user may not set.

A plain `key=value` fails where verl has no such key, so a typo is found. `+key=value` is used only where verl accepts
any key: for settings that it passes on to vLLM, Megatron and Ray (OPEN).

In a recipe's `verl` tree or after `--`, some of verl's own settings are refused: those that a recipe's field produces,
since the field has its own checks (some even if this recipe does not produce them: OWNED); those that an option
produces, such as folders; those that verl does not read; and those that do harm. Settings that this project chooses
freely (CHOICES) may be overridden.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_quant.integrations.verl import OPTIONS
from ascend_quant.integrations.verl.training import attention_settings as attention
from launch import ROOT
from launch.recipes.fields import Recipe
from launch.recipes.settings import (
    CARRIER,
    CHOSEN,
    COMPILE,
    EXACT_SETTINGS,
    ROUTING_REPLAY,
    SYNC_STEP,
    Paths,
    environment,
    folders,
    settings,
)
from launch.recipes.verl import (
    ACTOR,
    CORRECTION,
    DATA_PARALLEL,
    EAGER,
    ENVIRONMENT,
    MODEL,
    OPTIMIZER,
    POLICY_LOSS,
    REFERENCE,
    ROLLOUT,
    TRANSFORMER,
    VLLM,
    leaves,
    text,
    verl_of,
)

OURS = f"{ROLLOUT}.engine_kwargs.ascend_quant"
QUANTIZATION = f"{VLLM}.hf_overrides.quantization_config"
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
CHOICES = (*COMPILE, SYNC_STEP, CARRIER, EAGER, attention.LIBRARY_KEY, attention.NAME_KEY, "trainer.experiment_name")
FIELDS = {  # what these are made from
    "data.max_prompt_length": "rollout.max_prompt_length",
    "data.max_response_length": "rollout.max_response_length",
    "trainer.nnodes": "nodes",
    "trainer.n_gpus_per_node": "devices_per_node",
    "trainer.v1.trainer_mode": "rollout.apart",
    "actor_rollout_ref.hybrid_engine": "rollout.apart",
    f"{ROLLOUT}.nnodes": "rollout.apart",
    f"{ROLLOUT}.n_gpus_per_node": "rollout.apart",
    "model_engine": "backend",
    f"{ROLLOUT}.n": "rollout.n",
    f"{ROLLOUT}.tensor_model_parallel_size": "rollout.tensor_parallel",
    f"{ROLLOUT}.expert_parallel_size": "rollout.expert_parallel",
    f"{ROLLOUT}.gpu_memory_utilization": "rollout.gpu_memory_utilization",
    f"{ROLLOUT}.max_model_len": "rollout.max_response_length",
    **dict.fromkeys(ROUTING_REPLAY, "training.routing_replay"),
}
OWNED = {  # and these are the fields' where they make nothing, too: a field that is left out says how it is
    f"{OURS}.send": "rollout.send",
    f"{OURS}.qat": "qat",
    **{f"{QUANTIZATION}.{name}": f"rollout.{name}" for name in ("scheme", "ignore", "kv_cache")},
    f"{QUANTIZATION}.quant_method": "rollout.scheme",
    f"{QUANTIZATION}.exact": "qat",
    f"{VLLM}.quantization": "rollout.scheme",
    f"{ROLLOUT}.quantization": "rollout.scheme",
    f"{TRANSFORMER}.fp8": "training.precision",
    f"{TRANSFORMER}.fp8_recipe": "training.fp8.recipe",
    f"{OPTIMIZER}.fp8_recipe": "training.fp8.recipe",
    f"{TRANSFORMER}.fp8_param": "training.fp8.param_gather",
    f"{DATA_PARALLEL}.fp8_param_gather": "training.fp8.param_gather",
    f"{TRANSFORMER}.num_layers_in_last_pipeline_stage": "training.parallel.last_stage_layers",
    f"{OPTIMIZER}.optimizer_cpu_offload": "training.cpu_adam",
    f"{CORRECTION}.rollout_is": "correction.level",
    f"{CORRECTION}.rollout_is_threshold": "correction.threshold",
    f"{CORRECTION}.rollout_is_batch_normalize": "correction.batch_normalize",
    f"{CORRECTION}.bypass_mode": "correction.bypass",
}
# verl 0.9.1 casts the whole module, the frequencies of the rotary embedding too: a small random Qwen2 is then 0.04 nats
# a token from itself at position 400, 0.8 at 3,500. With BF16 arithmetic alone, which FSDP has anyway: 0.001 everywhere
HARMFUL = {
    f"{part}.fsdp_config.model_dtype": (
        "remove it: with less than float32, verl also rounds the frequencies of the rotary embedding, and the "
        "trainer's policy diverges from the rollout's more with every token; products are in BF16 anyway"
    )
    for part in (ACTOR, REFERENCE)
}


@dataclass(frozen=True)
class Resolved:
    """Resolved command of a recipe: what to run.

    Attributes:
        main: the module that starts it, for `python -m`.
        overrides: its arguments.
        environment: variables for every process; the overrides also pass some of them on.
        files: files for the working directory: the name there, and the file.
    """

    main: str
    overrides: tuple[str, ...]
    environment: dict[str, str]
    files: dict[str, Path]


def resolve(recipe: Recipe, paths: Paths) -> Resolved:
    """Resolve a recipe to the command of the verl that its stack pins."""
    verl = verl_of(recipe.stack)
    tree = settings(recipe) | folders(recipe, paths) | dict(leaves(recipe.verl))
    return Resolved(
        verl.main,
        tuple(f"{_plus(key)}{key}={text(value)}" for key, value in tree.items() if not verl.lacks(key)),
        environment(recipe),
        {name: ROOT / file for name, file in recipe.files.items()},
    )


def _plus(key: str) -> str:
    if key in UNLISTED:
        return "+"
    for mapping, present in OPEN.items():
        if key.startswith(f"{mapping}."):
            return "" if key.removeprefix(f"{mapping}.") in present else "+"
    return ""


def refused(recipe: Recipe, keys: Iterable[str]) -> Iterator[str]:
    """Yield a line for each setting that may not be given by its own name, with what to change."""
    own: dict[str, Any] = {key: value for key, value in settings(recipe).items() if key not in CHOICES}
    verl = verl_of(recipe.stack)
    for key in keys:
        inside = next((one for one in (*own, *OWNED, *CHOSEN) if one.startswith(f"{key}.")), None)
        if key in own:
            by_qat = recipe.is_exact and key in EXACT_SETTINGS
            field = "qat" if by_qat else FIELDS.get(key) or OWNED.get(key)
            change = f"--set {field}=.." if field else "change that field"
            yield f"{key} is made from a field of the recipe ({own[key]!r}): {change}"
        elif key in OWNED:
            yield f"{key} belongs to a field of the recipe, which has checks of its own: --set {OWNED[key]}=.."
        elif key in CHOSEN:
            yield f"{key} is chosen when the run starts: give {CHOSEN[key]}"
        elif inside:
            yield f"{key} holds {inside}, which is made from a field or an option: give its settings one by one"
        elif key.startswith(f"{OURS}.") and key.removeprefix(f"{OURS}.") not in OPTIONS:
            free = ", ".join(name for name in OPTIONS if f"{OURS}.{name}" not in OWNED)
            yield f"{key}: there is no such option; the options are {free}"
        elif key in HARMFUL:
            yield f"{key}: {HARMFUL[key]}"
        elif key in verl.unread:
            instead = " and ".join(verl.unread[key])
            yield f"{key}: verl {verl.name} does not read it: {f'it reads {instead}' if instead else 'remove it'}"
