"""vllm-ascend's int8 cache of keys and values (C8), whose scales follow a trainer."""

from types import SimpleNamespace

import torch

from ascend_quant.smoke.npu import data
from ascend_quant.smoke.npu.graphs import captured_if_possible
from ascend_quant.smoke.probes import NotPossible, On, Seen, need, probe
from ascend_quant.smoke.results import without_traces

PAIRS = {"qwen2.5-7b": (28, 4), "qwen2.5-32b": (40, 8), "qwen3-30b-a3b": (32, 4), "documented": (64, 8)}
BLOCK, TOKENS, KV_HEADS, HEADS, HEAD = 128, 100, 2, 4, 128


@probe(
    "operators.c8",
    "attention decodes from an int8 cache with the scales of the last sync, in a captured graph too",
    ("npu",),
)
def c8(on: On) -> Seen:
    attention, plugin, probing = _plugin()
    seen = Seen()
    for name, pair in PAIRS.items():  # what is refused for one may work for another
        try:
            error = probing.largest_error(probing.scratch(attention, *pair, HEAD), torch.bfloat16, on.device)
        except Exception as why:  # what it says is what we came for
            error = without_traces(f"{type(why).__name__}: {why}")
        seen.values[f"error with the heads of {name}"] = error
        seen.holds(isinstance(error, float) and error < probing.TOLERANCE, f"heads of {name}: {error}")
    layer = _layer(attention, plugin, probing, on)
    buffers = plugin.C8Buffers({"layers.0.self_attn": layer}, KV_HEADS, rank=0, ranks=1)
    query, keys = (torch.randn(TOKENS, count, HEAD, generator=data.generator(count)) for count in (1, KV_HEADS))
    keys, query = keys.to(torch.bfloat16), query[:1].expand(1, HEADS, HEAD).to(torch.bfloat16).contiguous()
    there, asked = on.put(keys), on.put(query)
    metadata = SimpleNamespace(
        num_actual_tokens=TOKENS,
        slot_mapping=on.put(torch.arange(TOKENS, dtype=torch.int32)),
        block_tables=on.put(torch.zeros(1, 1, dtype=torch.int32)),
        seq_lens_list=[TOKENS],
    )
    pages = tuple(on.put(torch.zeros(1, BLOCK, KV_HEADS, HEAD, dtype=torch.int8)) for _ in "kv")

    def forward() -> torch.Tensor:
        codes = layer.impl._quantize_kv_to_int8(there, there, layer, TOKENS)
        layer.impl._reshape_and_cache(asked, *codes, pages, metadata, None)
        return layer.impl._forward_c8_decode(asked, metadata, torch.empty_like(asked), layer)

    replay, captured = captured_if_possible(seen, forward)
    for largest in (0.5, 2.0, 8.0):  # the first cuts off
        buffers.write({"layers.0.self_attn": torch.full((2, KV_HEADS * HEAD), largest / 127)})
        replay()
        found = forward() if captured is None else captured
        off = _off(found.cpu(), query, keys, largest / 127)
        seen.values[f"largest error with keys up to {largest}"] = off
        seen.holds(
            off < probing.TOLERANCE, f"decoding with keys up to {largest} is off by {off:.3g} of the largest value"
        )
    return seen


def _off(found: torch.Tensor, query: torch.Tensor, keys: torch.Tensor, scale: float) -> float:
    """From attention over rounded keys, which are the values too, in float64."""
    held = float(torch.tensor(scale, dtype=torch.bfloat16))
    rows = (keys.double() / held).round().clamp(-128, 127) * held
    rows_HTD = rows.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1)
    weights = (rows_HTD @ query.double().view(HEADS, HEAD, 1) * HEAD**-0.5).softmax(1)
    expected = (weights * rows_HTD).sum(1)
    return float((found.double().view(HEADS, HEAD) - expected).abs().max() / expected.abs().max())


def _layer(attention: type, plugin, probing, on: On) -> torch.nn.Module:
    """A refit as the plugin makes one, without vLLM around it."""
    layer, channels = torch.nn.Module(), KV_HEADS * HEAD
    layer.num_kv_heads, layer.head_size = KV_HEADS, HEAD
    layer.impl = probing.scratch(attention, HEADS, KV_HEADS, HEAD)
    for name, value in plugin.PARAMETERS.items():
        layer.register_buffer(name, on.put(torch.full((channels,), value, dtype=torch.bfloat16)))
    plugin.derive(layer, "a layer")
    return layer


def _plugin():
    """vllm-ascend's attention with C8, our buffers of its scales, and our trial of it; vLLM's plugins are loaded."""
    need("vllm", "vllm_ascend")
    from ascend_quant.integrations.vllm import register

    register()
    from ascend_quant.integrations.vllm_ascend import c8, c8_probe, compat

    if compat.C8Scheme is None:
        raise NotPossible("this vllm-ascend has no int8 KV cache (C8)")
    from vllm_ascend.attention.attention_v1 import AscendC8AttentionBackendImpl

    return AscendC8AttentionBackendImpl, c8, c8_probe
