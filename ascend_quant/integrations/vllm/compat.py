"""Differences between vLLM 0.10.1, 0.23, 0.24, 0.28, 0.31 and 0.32, detected by probing, never by version number.

This covers names that moved, and the behaviour of loaders, routers and samplers. hooks.py lists what is replaced.
"""

from collections.abc import Callable
from functools import cache
from inspect import signature
from types import SimpleNamespace
from typing import Any, get_args

import torch
from vllm import (
    _custom_ops,  # loads vLLM's kernels, one of which is probed below
    envs,
)
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase as ExpertsMethodBase
from vllm.platforms import current_platform
from vllm.v1.request import RequestStatus

from ascend_quant.integrations.contract import takes

try:  # vLLM >= 0.28 holds the experts' weights in a separate layer
    from vllm.model_executor.layers.fused_moe import RoutedExperts as EXPERTS_LAYER
except ImportError:
    from vllm.model_executor.layers.fused_moe import FusedMoE as EXPERTS_LAYER

try:
    from vllm.model_executor.layers.attention import Attention as AttentionLayer
except ImportError:  # vLLM 0.10
    from vllm.attention import Attention as AttentionLayer

try:  # latent attention as a layer, which derives tensors from its weights; older versions are refused
    from vllm.model_executor.layers.attention import MLAAttention as MLA_LAYER
except ImportError:
    MLA_LAYER = None

try:  # the linear attention whose CPU kernels read packed convolution weights
    from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention as DELTA_NET_LAYER
except ImportError:
    DELTA_NET_LAYER = None

try:  # of vision towers; derives nothing from weights, but may compute in FP8 with its own scales
    from vllm.model_executor.layers.attention.mm_encoder_attention import MMEncoderAttention as ENCODER_ATTENTION
except ImportError:
    ENCODER_ATTENTION = None

try:  # placeholder for parts that vLLM has not built, such as the tower of a disabled modality
    from vllm.model_executor.models.utils import StageMissingLayer as STAGE_MISSING
except ImportError:
    STAGE_MISSING = None

try:
    from vllm.v1.serial_utils import run_method
except ImportError:  # vLLM 0.10
    from vllm.utils import run_method

# If the experts are a separate layer (0.28), loaders also accept (E, N, K) stacks; before, only single experts.
TAKES_STACKED = EXPERTS_LAYER.__name__ != "FusedMoE"

# On CPUs, vLLM's unquantized layers pack their weights and discard the originals; elsewhere they derive nothing.
PACKS_PLAIN_WEIGHTS = current_platform.is_cpu()

# How a request ends that an engine may not serve; older versions have no error status.
ENDED = getattr(RequestStatus, "FINISHED_ERROR", RequestStatus.FINISHED_ABORTED)

if hasattr(torch.ops._moe_C, "topk_softmax"):
    _select_experts = None
else:  # CPU builds before 0.32 lack the kernel of vLLM's router
    try:  # vLLM 0.28 routes in torch ops, inside its CPU experts
        from vllm.model_executor.layers.fused_moe.experts.cpu_moe import select_experts as _select_experts
    except ImportError:
        try:  # before 0.28
            from vllm.model_executor.layers.fused_moe.cpu_fused_moe import select_experts as _select_experts
        except ImportError:  # vLLM 0.32 has its own CPU router
            _select_experts = None

__all__ = [
    "DELTA_NET_LAYER",
    "ENCODER_ATTENTION",
    "ENDED",
    "EXPERTS_LAYER",
    "MLA_LAYER",
    "PACKS_PLAIN_WEIGHTS",
    "STAGE_MISSING",
    "TAKES_STACKED",
    "AttentionLayer",
    "ExpertsMethodBase",
    "base_of_passes",
    "batch_invariant",
    "begins_anew",
    "cache_dtypes",
    "convolution_as_read",
    "forgets_towers_outputs",
    "has_first_runner",
    "in_order",
    "is_own_transfer",
    "replica_of",
    "routes_by_itself",
    "run_method",
    "samples_with_logprobs",
    "select_experts",
    "set_up_logging",
]


def batch_invariant() -> bool:
    """Return whether vLLM's batch-invariant mode (VLLM_BATCH_INVARIANT) is on; older versions do not have it."""
    return getattr(envs, "VLLM_BATCH_INVARIANT", False)


def routes_by_itself() -> bool:
    """Return whether vLLM passes routed expert ids to the experts."""
    return _select_experts is None


def select_experts(
    layer: torch.nn.Module, x: torch.Tensor, router_logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Route with vLLM's torch ops: return routing weights and expert ids (M, T), from router logits cast to float32."""
    return _select_experts(
        hidden_states=x,
        router_logits=router_logits.float(),
        top_k=layer.top_k,
        use_grouped_topk=layer.use_grouped_topk,
        renormalize=layer.renormalize,
        topk_group=layer.topk_group,
        num_expert_group=layer.num_expert_group,
        custom_routing_function=layer.custom_routing_function,
        scoring_func=layer.scoring_func,
        routed_scaling_factor=getattr(layer, "routed_scaling_factor", 1.0),  # if absent, the model does it
        e_score_correction_bias=layer.e_score_correction_bias,
    )


def samples_with_logprobs(sample: Callable) -> bool:
    """Return whether a sampler's `sample` returns log-probabilities with the tokens; vLLM 0.10.1's does not."""
    return "tuple" in str(sample.__annotations__.get("return")).lower()


@cache
def _knows_orders() -> bool:
    from vllm.model_executor.layers.quantization.utils.marlin_utils import apply_gptq_marlin_linear

    return takes(apply_gptq_marlin_linear, "g_idx")


def in_order(none: torch.Tensor) -> dict[str, Any]:
    """Return the arguments that tell Marlin's GEMM that input channels are not permuted (g_idx); none from 0.30 on."""
    return {"g_idx": none, "g_idx_sort_indices": none, "is_k_full": True} if _knows_orders() else {}


def base_of_passes() -> type:
    """Return vLLM's base class of compiler passes over graphs, `InductorPass`."""
    try:
        from vllm.compilation.passes.inductor_pass import InductorPass
    except ImportError:  # older versions have it in another module
        from vllm.compilation.inductor_pass import InductorPass
    return InductorPass


def begins_anew() -> bool:
    """Return whether resetting the prefix cache can recompute running requests from their first token."""
    from vllm.v1.core.sched.scheduler import Scheduler

    return "reset_running_requests" in signature(Scheduler.reset_prefix_cache).parameters


def cache_dtypes() -> tuple[str, ...]:
    """Return the names of the KV cache dtypes that vLLM supports."""
    try:
        from vllm.config.cache import CacheDType
    except ImportError:  # vLLM 0.10
        from vllm.config import CacheDType
    return get_args(CacheDType)


def convolution_as_read(weight: torch.Tensor) -> torch.Tensor:
    """Return a gated delta net's convolution (channels, 1, width) as vLLM's kernels read it: packed, or unchanged.

    This applies vLLM's own rule: it always packs with AMX; 0.31 also with AVX512-BF16, 0.32 also on ARM.

    Raises:
        RuntimeError: vLLM's packing does not support the shape.
    """
    if not (current_platform.is_cpu() and hasattr(_custom_ops, "causal_conv1d_weight_pack")):
        return weight
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm  # not in 0.10

    layer = SimpleNamespace(weight=weight.clone())  # vLLM packs in place of the attribute's data
    dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
    return layer.weight


def forgets_towers_outputs(core) -> bool:
    """Reset an engine core's encoder cache (outputs of vision and other towers); return False if it cannot be reset."""
    if core.vllm_config.model_config.is_multimodal_model:
        if not hasattr(core, "reset_encoder_cache"):  # older versions
            return False
        core.reset_encoder_cache()
    return True


def has_first_runner(vllm_config) -> bool:
    """Return whether vLLM's first model runner serves the model; from 0.29 on, GPUs use the second one."""
    return not getattr(vllm_config, "use_v2_model_runner", False)


def is_own_transfer(name: str) -> bool:
    """Return whether a weight transfer is one of vLLM's own, not registered by a user."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory as Factory

    registered = Factory._registry.get(name)  # vLLM itself refuses a name that is not registered
    return registered is not None and registered().__module__.startswith("vllm.")


def generation_error() -> type[Exception]:
    """Return the exception whose text the HTTP server sends when it is raised in place of an output."""
    try:
        from vllm.exceptions import GenerationError
    except ImportError:  # before 0.31
        from vllm.entrypoints.openai.engine.protocol import GenerationError
    return GenerationError


def set_up_logging() -> None:
    """Configure vLLM's logging from its variables: older versions do so at import, 0.31 when an engine starts."""
    try:
        from vllm.config.logging import LoggingConfig
        from vllm.logger import configure_logging_if_needed
    except ImportError:
        return
    configure_logging_if_needed(LoggingConfig())


def replica_of(parallel_config) -> int:
    """Return the index, from 0, of vLLM's data-parallel replica to which this process belongs."""
    # since vLLM 0.14 every replica of a dense model has rank 0
    return getattr(parallel_config, "data_parallel_index", parallel_config.data_parallel_rank)
