"""verl's settings for the trainer, FSDP2 or Megatron.

FP8 training is Megatron's: `fp8`, `fp8_recipe` and `fp8_param` of its TransformerConfig, `fp8_param_gather` of its
DistributedDataParallelConfig, `fp8_recipe` of its OptimizerConfig (megatron-core 0.16 to 0.18).
"""

from typing import Any

from ascend_quant.integrations.verl import attention_settings as attention
from launch.recipes.fields import Fp8, Parallel, Recipe, Training
from launch.recipes.keys import ACTOR, DATA_PARALLEL, OPTIMIZER, REFERENCE, TRANSFORMER


def training_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings by their dotted keys."""
    engine = "megatron" if recipe.backend == "megatron" else "fsdp_config"
    return {
        **(_megatron(recipe) if recipe.backend == "megatron" else _fsdp2(recipe)),
        **_offload(recipe.training, engine),
    }


def _fsdp2(recipe: Recipe) -> dict[str, Any]:
    sequence = recipe.training.sequence_parallel
    return {
        "model_engine": "dp",
        f"{ACTOR}.strategy": "fsdp2",
        f"{ACTOR}.fsdp_config.strategy": "fsdp2",
        f"{ACTOR}.fsdp_config.use_torch_compile": False,  # of the entropy; verl's engine reads it here alone
        f"{REFERENCE}.fsdp_config.strategy": "fsdp2",
        **_attention(recipe),
        **({f"{ACTOR}.ulysses_sequence_parallel_size": sequence} if sequence > 1 else {}),  # the reference follows
    }


def _attention(recipe: Recipe) -> dict[str, Any]:
    """The stack cuda13 has no flash-attn, verl's default; NPUs have that of transformers. The reference follows."""
    of_the_recipe = recipe.verl.get("actor_rollout_ref", {}).get("model", {}).get("override_config", {})
    if recipe.stack != "cuda13" or "attn_implementation" in of_the_recipe:
        return {}
    return {attention.LIBRARY_KEY: attention.LIBRARY, attention.NAME_KEY: attention.PACKED}


def _megatron(recipe: Recipe) -> dict[str, Any]:
    return {
        "model_engine": "megatron",
        **_parallel(recipe.training.parallel or Parallel()),
        **(_fp8(recipe.fp8) if recipe.fp8 else {}),
        **(_cpu_adam() if recipe.training.cpu_adam else {}),
    }


def _offload(training: Training, engine: str) -> dict[str, Any]:
    actor = {f"{ACTOR}.{engine}.param_offload": True, f"{ACTOR}.{engine}.optimizer_offload": True}
    reference = {f"{REFERENCE}.{engine}.param_offload": True}
    return {**(actor if training.offload else {}), **(reference if training.reference_offload else {})}


def _parallel(parallel: Parallel) -> dict[str, Any]:
    key = f"{ACTOR}.megatron"
    last = parallel.last_stage_layers
    return {
        f"{key}.tensor_model_parallel_size": parallel.tensor,
        f"{key}.sequence_parallel": parallel.tensor > 1,
        f"{key}.pipeline_model_parallel_size": parallel.pipeline,
        f"{key}.context_parallel_size": parallel.context,
        f"{key}.expert_model_parallel_size": parallel.expert,
        f"{key}.expert_tensor_parallel_size": 1,
        **({f"{TRANSFORMER}.num_layers_in_last_pipeline_stage": last} if last else {}),
    }


def _fp8(fp8: Fp8) -> dict[str, Any]:
    made = {f"{TRANSFORMER}.fp8": fp8.format, f"{TRANSFORMER}.fp8_recipe": fp8.recipe}
    if fp8.param_gather:
        made[f"{TRANSFORMER}.fp8_param"] = True
        made[f"{DATA_PARALLEL}.fp8_param_gather"] = True
        made[f"{OPTIMIZER}.fp8_recipe"] = fp8.recipe
    return made


def _cpu_adam() -> dict[str, Any]:
    return {
        f"{OPTIMIZER}.optimizer_cpu_offload": True,
        f"{OPTIMIZER}.optimizer_offload_fraction": 1.0,
        f"{OPTIMIZER}.overlap_cpu_optimizer_d2h_h2d": True,
        f"{OPTIMIZER}.use_precision_aware_optimizer": True,
    }
