"""Option exact, for exact on-policy RL: a token's log-probability has the same bits in decode, prefill and trainer.

int8 products are integer sums, which do not depend on the batch. Norms, SiLU and rotation use ops that the trainer
shares (kernels/exact_ops.py), attention sums over the keys of a token in one order (attention.py), and routers use one
kernel for any number of tokens. Layers and settings that cannot be exact are refused.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding
from vllm.platforms import current_platform

from ascend_quant.integrations.vllm.compat import AttentionLayer
from ascend_quant.integrations.vllm.exact.attention import SPLIT_HEADS
from ascend_quant.kernels import exact_ops
from ascend_quant.refit import RefitError

MOST_RANKS = 2  # a sum of two terms does not depend on the order


def install(model: nn.Module, vllm_config: Any) -> None:
    """Make a built model compute with the exact ops.

    Raises:
        RefitError: a setting or a layer cannot be exact; the message names it.
    """
    check(vllm_config)
    for name, layer in model.named_modules():
        if reason := _why_not(layer):
            raise RefitError(f"option exact: {name} ({type(layer).__name__}): {reason}; remove the option")
        if method := METHODS.get(type(layer)):
            layer._forward_method = partial(method, layer)


def check(vllm_config: Any) -> None:
    """Raise RefitError for a device or an engine setting that cannot be exact."""
    if not (current_platform.is_cpu() or _is_hopper()):
        raise RefitError(
            f"option exact: on {current_platform.device_type} attention is not batch-invariant; only "
            "FlashAttention 3 on Hopper GPUs (H100, H200) is; remove the option"
        )
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    settings = {
        "dtype": (vllm_config.model_config.dtype, torch.bfloat16),
        "kv_cache_dtype": (cache.cache_dtype, "auto"),
        "speculative_config": (vllm_config.speculative_config, None),
        "enable_lora": (vllm_config.lora_config is not None, False),
        "decode_context_parallel_size": (getattr(parallel, "decode_context_parallel_size", 1), 1),
        "enable_expert_parallel": (parallel.enable_expert_parallel, False),
    }
    for name, (value, needed) in settings.items():
        if value != needed:
            raise RefitError(f"option exact: {name} is {value}; only {needed} is batch-invariant")
    if parallel.tensor_parallel_size > MOST_RANKS:
        raise RefitError(
            f"option exact: tensor_parallel_size={parallel.tensor_parallel_size}: an all-reduce has a fixed "
            f"order of summation only with at most {MOST_RANKS} ranks"
        )


def _is_hopper() -> bool:
    return current_platform.is_cuda() and current_platform.is_device_capability_family(90)


def _why_not(layer: nn.Module) -> str | None:
    """Return why a layer cannot be exact; None if it can, or if its parts are checked separately."""
    if isinstance(layer, RotaryEmbedding | RMSNorm | SiluAndMul) and type(layer) not in METHODS:
        return "the trainer does not implement this formula"
    if type(layer) is RMSNorm and (not layer.has_weight or layer.variance_size_override is not None):
        return "the norm has no weight, or normalizes only part of its row"
    if type(layer) in ROTATIONS and (layer.rotary_dim != layer.head_size or not layer.is_neox_style):
        return f"rotary_dim={layer.rotary_dim} of {layer.head_size}, is_neox_style={layer.is_neox_style}"
    if isinstance(layer, AttentionLayer):
        if current_platform.is_cuda() and layer.head_size in SPLIT_HEADS:
            return f"heads of {layer.head_size}: FlashAttention 3 sums over other key blocks in decode than in prefill"
        if layer.sliding_window is not None:
            return f"sliding_window={layer.sliding_window}"
    return None


def _norm(layer: RMSNorm, x: torch.Tensor, residual: torch.Tensor | None = None):
    if residual is None:
        return exact_ops.rms_norm(x, layer.weight, layer.variance_epsilon)
    return exact_ops.add_rms_norm(x, residual, layer.weight, layer.variance_epsilon)


def _silu(layer: SiluAndMul, x: torch.Tensor) -> torch.Tensor:
    return exact_ops.silu_mul(x)


def _rotate(layer: RotaryEmbedding, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor):
    return exact_ops.rotate(positions, query, key, layer._match_cos_sin_cache_dtype(query))


ROTATIONS = (RotaryEmbedding, Llama3RotaryEmbedding)
METHODS = {RMSNorm: _norm, SiluAndMul: _silu, **dict.fromkeys(ROTATIONS, _rotate)}
