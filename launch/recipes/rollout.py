"""verl's settings for the engine: vLLM with our plugin, which re-quantizes its weights in place."""

from typing import Any

from launch.recipes.fields import Recipe
from launch.recipes.keys import ROLLOUT, VLLM
from launch.recipes.versions import verl_of


def rollout_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings by their dotted keys."""
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
        **(_quantization(recipe) if uses_plugin(recipe) else {}),
    }


def uses_plugin(recipe: Recipe) -> bool:
    """Whether our plugin builds the engine. On NPUs it serves no experts in BF16: there BF16 is vllm-ascend's own."""
    return not (recipe.rollout.scheme == "bf16" and recipe.stack.startswith("ascend"))


def _quantization(recipe: Recipe) -> dict[str, Any]:
    options = f"{VLLM}.hf_overrides.quantization_config"
    return {
        **({f"{VLLM}.quantization": "ascend_quant"} if verl_of(recipe.stack).names_quantization else {}),
        f"{options}.quant_method": "ascend_quant",
        f"{options}.scheme": recipe.rollout.scheme,
        **({f"{options}.ignore": recipe.rollout.ignore} if recipe.rollout.ignore else {}),
        **({f"{ROLLOUT}.engine_kwargs.ascend_quant.qat": recipe.qat} if recipe.qat else {}),
    }
