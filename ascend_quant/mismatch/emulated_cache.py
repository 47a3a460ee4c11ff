"""What a quantized cache's rounding does to the policy, without an engine: transformers' attention on rounded keys.

Every token's key and value is put through the oracle's rounding after the rotation, its own too, as decoding reads them
from a cache; the rest is computed in float32 from the model's BF16 weights. The policy beside it has them in BF16, as
an unquantized cache would. What separates the two is the rounding alone: no kernel, no order of sums. Before int8 the
keys' channels are balanced (emulated_balance.py), as an engine's are.
"""

from collections.abc import Callable
from typing import Any

import torch

from ascend_quant.mismatch.cache_rounding import ROUNDINGS
from ascend_quant.mismatch.emulated_balance import factors_of
from ascend_quant.refit.key_balance import told

NAME = "ascend_quant_cache"
ROWS = 1024  # of logits at a time: a long response's would be larger than the model

Rounding = Callable[[torch.Tensor, int, str], torch.Tensor]  # keys or values, their layer's number, "k" or "v"


def emulate(
    model_path: str, cache: str, sequences: list[dict[str, Any]], on_progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """The log-probabilities of each sequence's response with BF16 keys and values (`exact`), and `rounded`.

    With int8 also what is told of the keys' `balance`, and where it has something to do, those `unbalanced`.

    Args:
        cache: int8 or fp8.
        sequences: with `prompt` and `response`, token ids.
        on_progress: gets how many sequences are done, of how many.
    """
    model, rounding = load(model_path), ROUNDINGS[cache]
    roundings = {"exact": everywhere(ROUNDINGS["auto"]), "rounded": everywhere(rounding)}
    found: dict[str, Any] = {"balance": None}
    if cache == "int8":
        factors, why_not = factors_of(model)
        found["balance"] = told(factors, why_not)
        if found["balance"]["balanced"]:
            roundings |= {"rounded": balanced(rounding, factors), "unbalanced": roundings["rounded"]}
    found |= {name: [] for name in roundings}
    for number, one in enumerate(sequences):
        for name, each in roundings.items():
            found[name].append(logprobs(model, one["prompt"], one["response"], each))
        on_progress(number + 1, len(sequences))
    return found


def everywhere(rounding: Callable[[torch.Tensor], torch.Tensor]) -> Rounding:
    """The same in all layers, for keys and values."""
    return lambda x, layer, kind: rounding(x)


def balanced(rounding: Callable[[torch.Tensor], torch.Tensor], factors: list[torch.Tensor]) -> Rounding:
    """The same of keys (B, G, T, D) over each layer's factors (G, D), by which queries would be multiplied."""

    def rounded(x: torch.Tensor, layer: int, kind: str) -> torch.Tensor:
        if kind != "k":
            return rounding(x)
        factor_G1D = factors[layer].unsqueeze(1)
        return rounding(x / factor_G1D) * factor_G1D

    return rounded


def load(path: str) -> torch.nn.Module:
    """The model in float32, its attention ready to round."""
    from transformers import AttentionInterface, AutoModelForCausalLM
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=NAME)
    return model.eval().to(device)


def attend(module, query, key, value, attention_mask, *, cache_rounding: Rounding | None = None, **more):
    """transformers' own attention, on keys and values (B, H, T, D) as a cache would give them back."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if cache_rounding is None:
        raise ValueError(f"attention {NAME!r} is called without a rounding: this model does not hand arguments on")
    key, value = (cache_rounding(x, module.layer_idx, kind) for x, kind in ((key, "k"), (value, "v")))
    return sdpa_attention_forward(module, query, key, value, attention_mask, **more)


@torch.no_grad()
def logprobs(model: Any, prompt: list[int], response: list[int], rounding: Rounding) -> list[float]:
    """Of each token of the response."""
    ids_T = torch.tensor(prompt + response, device=model.device)
    hidden_TK = model.base_model(ids_T[None], use_cache=False, cache_rounding=rounding).last_hidden_state[0]
    wanted = ids_T[len(prompt) :]
    found = []
    rows = hidden_TK[len(prompt) - 1 : -1].split(ROWS)
    for part_TK, token_T in zip(rows, wanted.split(ROWS), strict=True):
        all_TV = model.get_output_embeddings()(part_TK).float().log_softmax(-1)
        found += all_TV.gather(1, token_T[:, None])[:, 0].tolist()
    return found
