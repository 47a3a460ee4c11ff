"""The factors that an engine would balance a model's keys by (oracle/key_balance.py), of transformers' layers."""

import torch

from ascend_quant.oracle.key_balance import key_balance, key_sizes
from ascend_quant.refit.key_balance import why_unknown


def factors_of(model: torch.nn.Module) -> tuple[list[torch.Tensor], str | None]:
    """(G, D) float32 of each layer; or none, and why an engine would not balance the keys of such a model.

    Args:
        model: transformers', with a head.
    """
    config = model.config.get_text_config()
    if why := why_unknown(config.model_type):
        return [], why
    if (part := (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor", 1)) != 1:
        return [], f"{part:g} of each head's channels are rotated, not all"
    return [_of_layer(layer) for layer in model.base_model.layers], None


@torch.no_grad()
def _of_layer(layer: torch.nn.Module) -> torch.Tensor:
    attention = layer.self_attn
    k_norm_D = attention.k_norm.weight if hasattr(attention, "k_norm") else None
    keys = attention.k_proj
    sizes = key_sizes(keys.weight, layer.input_layernorm.weight, keys.bias, k_norm_D, attention.head_dim)
    return key_balance(*sizes, shared=k_norm_D is not None)
