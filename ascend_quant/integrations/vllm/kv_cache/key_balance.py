"""Finds the tensors of a vLLM model that SmoothAttention scales for an int8 KV cache (kv_cache/smooth_attention.py).

It applies to all attention layers or to none: if one layer has an unknown structure, or weights that are not stored
row by row, it is disabled, and the log says why.
"""

import logging
from collections.abc import Iterator, Mapping

from torch import nn
from vllm.config import VllmConfig

from ascend_quant.integrations.vllm import compat
from ascend_quant.kv_cache.smooth_attention import Attention, KeyBalance, is_served, why_unknown
from ascend_quant.refit.resident import ResidentWeight

logger = logging.getLogger(__name__)

ROUNDS_CHANNELS_ALIKE = ("int8_per_token_head",)  # dtypes whose error is not relative per channel


class _Otherwise(Exception):
    """Raised if a model's structure is not supported by SmoothAttention; the message says why."""


def follow(model: nn.Module, vllm_config: VllmConfig, residents: Mapping[str, ResidentWeight]) -> KeyBalance | None:
    """Return SmoothAttention for a model; None if the cache does not benefit from it, such as a BF16 or fp8 cache."""
    if vllm_config.cache_config.cache_dtype not in ROUNDS_CHANNELS_ALIKE:
        return None
    kind = str(getattr(vllm_config.model_config.hf_text_config, "model_type", None))
    try:
        if why := why_unknown(kind):
            raise _Otherwise(why)
        if not compat.begins_anew():
            raise _Otherwise("this vLLM cannot recompute running requests when factors change")
        found = [_attention(name, model, residents) for name in _names(model)]
    except _Otherwise as why:
        logger.warning("SmoothAttention is not applied to the keys of the int8 KV cache: %s", why)
        return KeyBalance([], str(why))
    logger.info("SmoothAttention is applied to the keys of the int8 KV cache in %d attention layers", len(found))
    return KeyBalance(found)


def _names(model: nn.Module) -> Iterator[str]:
    """Yield the names of the layers that contain vLLM's attention."""
    for name, module in model.named_modules():
        if isinstance(module, compat.AttentionLayer):
            yield name.rpartition(".")[0]


def _attention(name: str, model: nn.Module, residents: Mapping[str, ResidentWeight]) -> Attention:
    """Return the tensors of an attention layer; raise _Otherwise if its structure is not supported."""
    layer, block = model.get_submodule(name), name.rpartition(".")[0]
    rotation, head = getattr(layer, "rotary_emb", None), layer.attn.head_size
    if not getattr(rotation, "is_neox_style", False) or rotation.rotary_dim != head:
        raise _Otherwise(f"{name} does not rotate channels i and i + {head // 2} of {head} as a pair")
    wanted = f"{block}.input_layernorm.weight", f"{name}.qkv_proj.weight"
    if missing := [one for one in wanted if one not in residents]:
        raise _Otherwise(f"{name} has no {missing[0]}")
    norm, qkv = (residents[one] for one in wanted)
    if not is_served(qkv):
        raise _Otherwise(f"rows of {qkv.name} share scales, or are not stored as rows")
    bias, q_norm, k_norm = (
        residents.get(f"{name}.{leaf}") for leaf in ("qkv_proj.bias", "q_norm.weight", "k_norm.weight")
    )
    if [one.row_count for one in (q_norm, k_norm) if one is not None] not in ([], [head, head]):
        raise _Otherwise(f"the query and key norms of {name} are not per head")
    return Attention(name, norm, qkv, bias, q_norm, k_norm, layer.attn.num_heads, layer.attn.num_kv_heads, head)
