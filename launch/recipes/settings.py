"""The settings of verl that a recipe's fields make, by their dotted keys; its `verl` tree comes on top.

Four parts: the run as a whole; the rollout's engine, vLLM with our plugin, which re-quantizes its weights in place; the
importance weights against the difference between its policy and the trainer's; the trainer, FSDP2 or Megatron.

In bypass mode the weights are part of the actor's loss. Neither verl 0.9.1 (trainer v1) nor the older commit takes the
loss from `algorithm.rollout_correction`: their workers have a configuration of their own, made before that is looked
at, and would quietly use PPO's clipped loss without any weights. So the actor is told the same once more. Where it
computes the rollout's policy bit for bit (`qat: int8_exact`) that loss is the right one, and the actor is told nothing.

FP8 training is Megatron's: `fp8`, `fp8_recipe` and `fp8_param` of its TransformerConfig, `fp8_param_gather` of its
DistributedDataParallelConfig, `fp8_recipe` of its OptimizerConfig (megatron-core 0.16 to 0.18).
"""

import os
from dataclasses import dataclass
from typing import Any

from ascend_quant.integrations.verl.training import attention_settings as attention
from launch.recipes.fields import Correction, Fp8, Parallel, Recipe, Training
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
    verl_of,
)

COMPILE = tuple(f"{role}.fsdp_config.use_torch_compile" for role in (ACTOR, REFERENCE))  # of the entropy

SYNC_STEP = "trainer.v1.separate_async.parameter_sync_step"  # updates between two syncs
MINI = f"{ACTOR}.ppo_mini_batch_size"
CARRIER = f"{ROLLOUT}.checkpoint_engine.backend"
CHOSEN = {  # when the run starts: what `folders` makes, and the options that give it
    f"{MODEL}.path": "--model",
    "data.train_files": "--data (or --set data.train=FILE)",
    "data.val_files": "--data (or --set data.validation=FILE)",
    "trainer.default_local_dir": "--out",
}
ROUTING_REPLAY = {  # routing replay, R3: the engine returns each token's experts, and the trainer's routers take them
    f"{ROLLOUT}.enable_rollout_routing_replay": True,
    f"{ACTOR}.megatron.router_replay.mode": "R3",
}
EXACT_SETTINGS = {  # in place of a correction: the rollout's log-probabilities are the old policy's, and PPO clips
    f"{ROLLOUT}.calculate_log_probs": True,
    f"{CORRECTION}.bypass_mode": True,
    f"{CORRECTION}.rollout_is": None,
    f"{CORRECTION}.rollout_rs": None,
}
CPU_ADAM = {
    f"{OPTIMIZER}.optimizer_cpu_offload": True,
    f"{OPTIMIZER}.optimizer_offload_fraction": 1.0,
    f"{OPTIMIZER}.overlap_cpu_optimizer_d2h_h2d": True,
    f"{OPTIMIZER}.use_precision_aware_optimizer": True,
}


@dataclass(frozen=True)
class Paths:
    """Paths of one run: its model (a folder, or a hub id), its data, and where it writes."""

    model: str
    data: str
    out: str


def paths_of(recipe: Recipe, model: str | None, data: str, out: str | None) -> Paths:
    """Return the paths of a run; what was not said is the recipe's: its model, which may lie in the data; its name."""
    own = recipe.model.hub or f"{data}/{recipe.model.folder}"
    return Paths(model or own, data, out or f"runs/{recipe.name}")


def data_files(recipe: Recipe, paths: Paths) -> tuple[str, str]:
    """Return the files that are trained on, and those of the validation."""
    return os.path.join(paths.data, recipe.data.train), os.path.join(paths.data, recipe.data.validation)


def folders(recipe: Recipe, paths: Paths) -> dict[str, Any]:
    """Return the settings that name files."""
    return {
        f"{MODEL}.path": paths.model,
        "data.train_files": data_files(recipe, paths)[0],
        "data.val_files": data_files(recipe, paths)[1],
        "trainer.default_local_dir": f"{paths.out}/checkpoints",
    }


def settings(recipe: Recipe) -> dict[str, Any]:
    """Return all settings that name no file."""
    return {
        **rollout_settings(recipe),
        **(EXACT_SETTINGS if recipe.is_exact else correction_settings(recipe.correction)),
        **training_settings(recipe),
        **placement_settings(recipe),
        "trainer.experiment_name": recipe.name,
        **{f"{ENVIRONMENT}.{name}": value for name, value in numerics(recipe).items()},
    }


def numerics(recipe: Recipe) -> dict[str, str]:
    """Return variables on which results depend: verl hands them to every process, over any shell's value."""
    if recipe.fp8 and recipe.fp8.recipe == "blockwise":  # scales in float32, as the rollout's, not powers of two
        return {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"}
    return {}


def environment(recipe: Recipe) -> dict[str, str]:
    """Return the recipe's variables for every process, HCCL's for NPUs alone: a GPU recipe may extend one for NPUs."""
    on_npus = recipe.stack.startswith("ascend")
    return numerics(recipe) | {
        name: value for name, value in recipe.environment.items() if on_npus or "HCCL_" not in name
    }


def placement_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of the devices: colocated trainer and engines, or some of each node for the engines alone."""
    apart = recipe.rollout.apart
    trainer = {"trainer.nnodes": recipe.nodes, "trainer.n_gpus_per_node": recipe.devices_per_node - apart}
    if not apart:
        return trainer
    return {
        **trainer,
        "trainer.v1.trainer_mode": "separate_async",
        SYNC_STEP: updates(recipe) or 1,
        "actor_rollout_ref.hybrid_engine": False,
        f"{ROLLOUT}.nnodes": recipe.nodes,
        f"{ROLLOUT}.n_gpus_per_node": apart,
        CARRIER: "nccl",  # the name of HCCL's too
    }


def updates(recipe: Recipe) -> int | None:
    """Return the optimizer updates in a step, its prompts over an update's; None if that is no whole number."""
    tree = {"data.train_batch_size": 1024, MINI: 256} | dict(leaves(recipe.verl))  # verl's defaults
    batch, mini = tree["data.train_batch_size"], tree[MINI]
    counts = all(isinstance(one, int) and one > 0 for one in (batch, mini))
    return batch // mini if counts and batch % mini == 0 else None


def rollout_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of the rollout engine."""
    rollout = recipe.rollout
    return {
        "data.max_prompt_length": rollout.max_prompt_length,
        "data.max_response_length": rollout.max_response_length,
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.n": rollout.n,
        f"{ROLLOUT}.tensor_model_parallel_size": rollout.tensor_parallel,
        f"{ROLLOUT}.expert_parallel_size": rollout.expert_parallel,
        f"{ROLLOUT}.gpu_memory_utilization": rollout.gpu_memory_utilization,
        f"{ROLLOUT}.max_model_len": rollout.max_prompt_length + rollout.max_response_length,
        **({EAGER: True} if _lacks_graphs(recipe) else {}),
        **(_quantization(recipe) if uses_plugin(recipe) else {}),
    }


def _lacks_graphs(recipe: Recipe) -> bool:
    """Return whether the engine cannot serve the model's int8 experts in graphs; its BF16 twin is eager too."""
    return recipe.model.experts and recipe.rollout.expert_parallel < verl_of(recipe.stack).ranks_for_graphs


def uses_plugin(recipe: Recipe) -> bool:
    """Return whether our plugin builds the engine; on NPUs BF16 is vllm-ascend's own, as we serve no BF16 experts."""
    return not (recipe.rollout.scheme == "bf16" and recipe.stack.startswith("ascend"))


def _quantization(recipe: Recipe) -> dict[str, Any]:
    options, verl = f"{VLLM}.hf_overrides.quantization_config", verl_of(recipe.stack)
    return {
        **({f"{VLLM}.quantization": "ascend_quant"} if verl.names_quantization else {}),
        **({f"{VLLM}.worker_extension_cls": verl.worker} if verl.worker else {}),
        f"{options}.quant_method": "ascend_quant",
        f"{options}.scheme": recipe.rollout.scheme,
        **({f"{options}.exact": True} if recipe.is_exact else {}),
        **({f"{options}.ignore": recipe.rollout.ignore} if recipe.rollout.ignore else {}),
        **({f"{options}.kv_cache": recipe.rollout.kv_cache} if recipe.rollout.kv_cache != "auto" else {}),
        **(
            {f"{ROLLOUT}.engine_kwargs.ascend_quant.send": recipe.rollout.send} if recipe.rollout.send != "bf16" else {}
        ),
        **({f"{ROLLOUT}.engine_kwargs.ascend_quant.qat": recipe.qat} if recipe.qat else {}),
    }


def correction_settings(correction: Correction | None) -> dict[str, Any]:
    """Return verl's settings of truncated importance sampling. Nothing is rejected or vetoed, as by verl's default."""
    if correction is None:
        return {f"{CORRECTION}.rollout_is": None}
    weights = {
        "rollout_is": correction.level,
        "rollout_is_threshold": correction.threshold,
        "rollout_is_batch_normalize": correction.batch_normalize,
        "bypass_mode": correction.bypass,
        **({"loss_type": "reinforce"} if correction.bypass else {}),  # its other loss ignores the weights
    }
    return {
        f"{ROLLOUT}.calculate_log_probs": True,
        **{f"{CORRECTION}.{name}": value for name, value in weights.items()},
        **(_loss(weights) if correction.bypass else {}),
    }


def _loss(weights: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{POLICY_LOSS}.loss_mode": "bypass_mode",
        **{f"{POLICY_LOSS}.rollout_correction.{name}": value for name, value in weights.items()},
    }


def training_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of the trainer."""
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
        f"{REFERENCE}.fsdp_config.strategy": "fsdp2",
        **dict.fromkeys(COMPILE, False),
        **_attention(recipe),
        **({f"{ACTOR}.ulysses_sequence_parallel_size": sequence} if sequence > 1 else {}),  # the reference follows
    }


def _attention(recipe: Recipe) -> dict[str, Any]:
    """Return the attention's settings: NPUs keep verl's default, flash_attention_2; other stacks have no flash-attn.

    The reference follows the actor.
    """
    if recipe.stack.startswith("ascend") or attention.NAME_KEY in dict(leaves(recipe.verl)):
        return {}
    return {attention.LIBRARY_KEY: attention.LIBRARY, attention.NAME_KEY: attention.PACKED}


def _megatron(recipe: Recipe) -> dict[str, Any]:
    return {
        "model_engine": "megatron",
        **_parallel(recipe.training.parallel or Parallel()),
        **(_fp8(recipe.fp8) if recipe.fp8 else {}),
        **(CPU_ADAM if recipe.training.cpu_adam else {}),
        **(ROUTING_REPLAY if recipe.training.routing_replay else {}),
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
