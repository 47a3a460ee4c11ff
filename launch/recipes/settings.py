"""The settings of verl 0.9.1 that a recipe's fields make, by their dotted keys; its `verl` tree comes on top.

Two kinds of quantization meet here. The rollout's goes to vLLM as options of our plugin. FP8 training is Megatron's:
`fp8`, `fp8_recipe` and `fp8_param` of its TransformerConfig, `fp8_param_gather` of its
DistributedDataParallelConfig, `fp8_recipe` of its OptimizerConfig (megatron-core 0.16.1).
"""

from dataclasses import dataclass
from typing import Any

from launch.recipes.fields import Correction, Fp8, Parallel, Recipe

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
TRANSFORMER = f"{ACTOR}.megatron.override_transformer_config"
DATA_PARALLEL = f"{ACTOR}.megatron.override_ddp_config"
OPTIMIZER = f"{ACTOR}.optim.override_optimizer_config"
VLLM = f"{ROLLOUT}.engine_kwargs.vllm"
ENVIRONMENT = "ray_kwargs.ray_init.runtime_env.env_vars"


@dataclass(frozen=True)
class Paths:
    """Where one run finds its model (a folder, or a hub id) and its data, and where it writes."""

    model: str
    data: str
    out: str


def folders(recipe: Recipe, paths: Paths) -> dict[str, Any]:
    """The settings that name files."""
    return {
        "actor_rollout_ref.model.path": paths.model,
        "data.train_files": f"{paths.data}/{recipe.data.train}",
        "data.val_files": f"{paths.data}/{recipe.data.validation}",
        "trainer.default_local_dir": f"{paths.out}/checkpoints",
    }


def settings(recipe: Recipe) -> dict[str, Any]:
    """All others."""
    made = {
        **_rollout(recipe),
        **_correction(recipe.correction),
        **(_megatron(recipe) if recipe.backend == "megatron" else _fsdp2()),
        "trainer.nnodes": recipe.nodes,
        "trainer.n_gpus_per_node": recipe.devices_per_node,
        "trainer.experiment_name": recipe.name,
    }
    return {**made, **{f"{ENVIRONMENT}.{name}": value for name, value in environment(recipe).items()}}


def environment(recipe: Recipe) -> dict[str, str]:
    """Variables that every process of the run needs; verl hands them to Ray."""
    if recipe.fp8 and recipe.fp8.recipe == "blockwise":  # scales in float32, as the rollout's, not powers of two
        return {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"}
    return {}


def _rollout(recipe: Recipe) -> dict[str, Any]:
    rollout = recipe.rollout
    quantization = f"{VLLM}.hf_overrides.quantization_config"
    return {
        "data.max_prompt_length": rollout.max_prompt_length,
        "data.max_response_length": rollout.max_response_length,
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.n": rollout.n,
        f"{ROLLOUT}.tensor_model_parallel_size": rollout.tensor_parallel,
        f"{ROLLOUT}.expert_parallel_size": rollout.expert_parallel,
        f"{ROLLOUT}.gpu_memory_utilization": rollout.gpu_memory_utilization,
        f"{ROLLOUT}.max_model_len": rollout.max_prompt_length + rollout.max_response_length,
        f"{VLLM}.quantization": "ascend_quant",
        f"{quantization}.quant_method": "ascend_quant",
        f"{quantization}.scheme": rollout.scheme,
        **({f"{quantization}.ignore": rollout.ignore} if rollout.ignore else {}),
        **({f"{ROLLOUT}.engine_kwargs.ascend_quant.qat": recipe.qat} if recipe.qat else {}),
    }


def _correction(correction: Correction | None) -> dict[str, Any]:
    key = "algorithm.rollout_correction"
    if correction is None:
        return {f"{key}.rollout_is": None}
    return {
        f"{key}.rollout_is": correction.level,
        f"{key}.rollout_is_threshold": correction.threshold,
        f"{key}.rollout_is_batch_normalize": correction.batch_normalize,
        f"{key}.bypass_mode": correction.bypass,
        **({f"{key}.loss_type": "reinforce"} if correction.bypass else {}),  # its other loss ignores the weights
    }


def _fsdp2() -> dict[str, Any]:
    return {
        "model_engine": "dp",
        f"{ACTOR}.strategy": "fsdp2",
        f"{ACTOR}.fsdp_config.strategy": "fsdp2",
        "actor_rollout_ref.ref.fsdp_config.strategy": "fsdp2",
    }


def _megatron(recipe: Recipe) -> dict[str, Any]:
    return {
        "model_engine": "megatron",
        **_parallel(recipe.training.parallel or Parallel()),
        **(_fp8(recipe.fp8) if recipe.fp8 else {}),
        **(_cpu_adam() if recipe.training.cpu_adam else {}),
    }


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
