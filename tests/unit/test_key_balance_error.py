"""What the balance of keys heals, on models with planted biases: the KL of rounded keys beside a computed error.

The error of q k that a rounding with one scale a token and head makes has the variance scale^2 / 12 sum_i q_i^2, if
errors are spread evenly: it is computed in float64 from queries and keys as attention gets them, and the KL of rounded
keys has to go with it.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

import rounded_attention as rounded  # noqa: E402
from rounded_attention import Rounding, bf16, everywhere  # noqa: E402

from ascend_quant.oracle.cache import dequantize_cache, quantize_cache  # noqa: E402
from ascend_quant.oracle.key_balance import key_balance, key_sizes  # noqa: E402

HEAD, WORDS = 64, 61
TEXTS = torch.randint(WORDS, (3, 64), generator=torch.Generator().manual_seed(1)).tolist()


def int8(x: torch.Tensor) -> torch.Tensor:
    return dequantize_cache(*quantize_cache(bf16(x)))


def loaded(folder: Path, value: float, pairs: int) -> torch.nn.Module:
    """A model of which so many channels of each key head have a bias of +-value, no two of them rotated together."""
    torch.manual_seed(0)
    shape = {"vocab_size": WORDS, "hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 192}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": HEAD, "tie_word_embeddings": False}
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shape, **heads)).float()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * (3.0 if parameter.dim() > 1 else 1.0)).bfloat16())
        for block in model.model.layers:
            for head_D in block.self_attn.k_proj.bias.view(-1, HEAD):
                channels = torch.randperm(HEAD // 2, generator=generator)[:pairs]
                second, sign = torch.randint(2, (2, pairs), generator=generator)
                head_D[channels + HEAD // 2 * second] = value * (1.0 - 2 * sign)
    model.save_pretrained(folder)
    return rounded.load(folder)


@torch.no_grad()
def factors_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """(G, D) float32 of each layer, by which an engine would balance its keys."""
    found = []
    for layer in model.base_model.layers:
        keys = layer.self_attn.k_proj
        sizes = key_sizes(keys.weight, layer.input_layernorm.weight, keys.bias, None, HEAD)
        found.append(key_balance(*sizes, shared=False))
    return found


def balanced(rounding: Callable[[torch.Tensor], torch.Tensor], factors: list[torch.Tensor]) -> Rounding:
    """Of keys over each layer's factors (G, D), by which queries would be multiplied; values stay as they are."""

    def found(x: torch.Tensor, layer: int, kind: str) -> torch.Tensor:
        factor_G1D = factors[layer].unsqueeze(1)
        return rounding(x / factor_G1D) * factor_G1D if kind == "k" else bf16(x)

    return found


def kl(model: torch.nn.Module, rounding: Rounding) -> float:
    exact, other = (
        torch.cat([rounded.logprobs(model, text[:4], text[4:], one) for text in TEXTS])
        for one in (everywhere(bf16), rounding)
    )
    return (torch.expm1(other - exact) - (other - exact)).mean().item()


def attended(model: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Queries and keys (B, H, T, D) of each layer, as attention is given them."""
    found = []

    def seen(module, query, key, *more, **named):
        found.append((query, key))
        return rounded.attend(module, query, key, *more, **named)

    transformers.AttentionInterface.register(rounded.NAME, seen)
    with torch.no_grad():
        model(torch.tensor(TEXTS), use_cache=False, cache_rounding=everywhere(bf16))
    transformers.AttentionInterface.register(rounded.NAME, rounded.attend)
    return found


def computed(seen: list[tuple[torch.Tensor, torch.Tensor]], factors: list[torch.Tensor]) -> float:
    """The error's variance over all layers, heads, and pairs of a token and one before it."""
    total = 0.0
    for (q, k), factor_GD in zip(seen, factors, strict=True):
        heads, groups = q.shape[1], k.shape[1]
        factor = factor_GD.double()[None, :, None]
        step_BGT = (k.double() / factor).abs().amax(-1) / 127
        size_BHT = (q.double() * factor.repeat_interleave(heads // groups, 1)).square().sum(-1)
        step_BHT = step_BGT.repeat_interleave(heads // groups, 1)
        both_BHTT = (size_BHT[..., :, None] * step_BHT[..., None, :] ** 2 / 12 / q.shape[-1]).tril()
        total += both_BHTT.sum().item()
    return total


@pytest.mark.parametrize(("value", "pairs"), [(50.0, 1), (100.0, 2), (200.0, 4)])
def test_the_kl_falls_as_the_error_does(tmp_path, value, pairs):
    model = loaded(tmp_path, value, pairs)
    factors = factors_of(model)
    assert all(int((one[:, : HEAD // 2] > 2).sum()) == 2 * pairs for one in factors)  # two heads
    ones = [torch.ones_like(one) for one in factors]
    seen = attended(model)
    falls = kl(model, balanced(int8, ones)) / kl(model, balanced(int8, factors))
    wanted = computed(seen, ones) / computed(seen, factors)
    print(f"bias {value:g} in {pairs} pairs: KL over {falls:.3g}, variance over {wanted:.3g}")
    assert wanted > HEAD / 2 / pairs / 4  # the large channels' own error is all that stays, or nearly
    assert wanted / 3 < falls < wanted * 3
