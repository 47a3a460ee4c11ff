"""What a quantized cache's rounding does to the policy, without an engine: transformers' attention on rounded keys.

Every token's key and value is rounded after the rotation, its own too, as decoding reads them from a cache; the rest is
computed in float32 from the model's BF16 weights.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "rounded_attention"

Rounding = Callable[[torch.Tensor, int, str], torch.Tensor]  # keys or values (B, H, T, D), their layer, "k" or "v"


def load(folder: Path) -> torch.nn.Module:
    """The model in float32, its attention ready to round."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=NAME).eval()


def attend(module, query, key, value, attention_mask, *, cache_rounding: Rounding, **more):
    """transformers' own attention, on keys and values as a cache would give them back."""
    key, value = (cache_rounding(x, module.layer_idx, kind) for x, kind in ((key, "k"), (value, "v")))
    return sdpa_attention_forward(module, query, key, value, attention_mask, **more)


@torch.no_grad()
def logprobs(model: torch.nn.Module, prompt: list[int], response: list[int], rounding: Rounding) -> torch.Tensor:
    """Of each token of the response, float64."""
    ids_T = torch.tensor(prompt + response)
    logits_TV = model(ids_T[None], use_cache=False, cache_rounding=rounding).logits[0, len(prompt) - 1 : -1]
    return logits_TV.double().log_softmax(-1).gather(1, ids_T[len(prompt) :, None])[:, 0]


def everywhere(rounding: Callable[[torch.Tensor], torch.Tensor]) -> Rounding:
    """The same in all layers, for keys and values."""
    return lambda x, layer, kind: rounding(x)


def bf16(x: torch.Tensor) -> torch.Tensor:
    """A cache that is not quantized."""
    return x.bfloat16().float()
