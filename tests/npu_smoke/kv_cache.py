"""vllm-ascend's int8 KV cache (C8), whose scales follow a trainer: by its functions, in a graph, in an engine."""

from functools import cache
from types import SimpleNamespace

import torch

from npu_smoke import tools
from npu_smoke.cache import HEAD, PAIRS
from npu_smoke.checks import IN_SHORT, NotPossible, Setting, check, require, without_traces
from npu_smoke.graphs import capture

PACKAGES = ("vllm", "vllm_ascend")
LIFE = (*PACKAGES, "acl", "transformers")
LIFE_S = 400.0
BLOCK, TOKENS, KV_HEADS, HEADS = 128, 100, 2, 4


@check("kv_cache.heads", needed=False)
def heads(on: Setting, numbers: dict) -> None:
    """Does an NPU decode from C8's cache for our heads, as the plugin tries it when a model is built?"""
    attention, probe = _attention()
    errors = {}
    for name, pair in PAIRS.items():
        try:
            impl = probe.scratch(attention, *pair, HEAD)
            errors[name] = probe.largest_error(impl, torch.bfloat16, on.device)
        except Exception as why:  # what it says is what we came for
            errors[name] = without_traces(f"{type(why).__name__}: {why}")[:300]
    numbers["largest error, or why not"] = errors
    near = [name for name, error in errors.items() if isinstance(error, float) and error < probe.TOLERANCE]
    numbers[IN_SHORT] = f"{len(near)} of {len(errors)} pairs of heads"
    require(len(near) == len(errors), "; ".join(f"{name}: {errors[name]}" for name in errors if name not in near))


@check("kv_cache.graphs", needed=False, claim="c8 graphs")
def graphs(on: Setting, numbers: dict) -> None:
    """Does a captured graph write and read an int8 cache with the scales that were written after its capture?"""
    attention, probe = _attention()
    layer = _layer(attention, probe, on)
    buffers = _plugin().c8.C8Buffers({"layers.0.self_attn": layer}, KV_HEADS, rank=0, ranks=1)
    rows = [torch.randn(TOKENS, count, HEAD, generator=torch.Generator().manual_seed(count)) for count in (1, KV_HEADS)]
    keys = on.put(rows[1].to(torch.bfloat16))
    query = on.put(rows[0][:1].expand(1, HEADS, HEAD).to(torch.bfloat16).contiguous())
    metadata = SimpleNamespace(
        num_actual_tokens=TOKENS,
        slot_mapping=on.put(torch.arange(TOKENS, dtype=torch.int32)),
        block_tables=on.put(torch.zeros(1, 1, dtype=torch.int32)),
        seq_lens_list=[TOKENS],
    )
    pages = tuple(on.put(torch.zeros(1, BLOCK, KV_HEADS, HEAD, dtype=torch.int8)) for _ in "kv")

    def forward() -> torch.Tensor:
        codes = layer.impl._quantize_kv_to_int8(keys, keys, layer, TOKENS)
        layer.impl._reshape_and_cache(query, *codes, pages, metadata, None)
        return layer.impl._forward_c8_decode(query, metadata, torch.empty_like(query), layer)

    replay, captured = capture(forward)
    last = None
    for turn, largest in enumerate((0.5, 2.0, 8.0)):  # the first cuts off
        scales = torch.full((2, KV_HEADS * HEAD), largest / 127)
        buffers.write({"layers.0.self_attn": scales})
        replay()
        torch.npu.synchronize()
        found = captured.cpu()
        numbers[f"replay {turn + 1}, codes at the limit"] = int((pages[0].cpu().abs() == 127).sum())
        require(last is None or not torch.equal(found, last), "a replay with other scales gave what it gave before")
        require(torch.equal(found, forward().cpu()), f"replay {turn + 1} is not what an eager call gives")
        off = _off(found, query, keys, largest / 127)
        numbers[f"replay {turn + 1}, largest error"] = off
        require(off < probe.TOLERANCE, f"replay {turn + 1} is off by {off:.3g} of the largest value")
        last = found


def _off(found: torch.Tensor, query: torch.Tensor, keys: torch.Tensor, scale: float) -> float:
    """From attention over rounded keys, which are the values too, in float64 on the host."""
    held = float(torch.tensor(scale, dtype=torch.bfloat16))
    rows = (keys.cpu().double() / held).round().clamp(-128, 127) * held
    rows_HTD = rows.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1)
    weights = (rows_HTD @ query.cpu().double().view(HEADS, HEAD, 1) * HEAD**-0.5).softmax(1)
    expected = (weights * rows_HTD).sum(1)
    return float((found.double().view(HEADS, HEAD) - expected).abs().max() / expected.abs().max())


def _layer(attention: type, probe, on: Setting) -> torch.nn.Module:
    """As the plugin makes one, without vLLM around it."""
    layer, channels = torch.nn.Module(), KV_HEADS * HEAD
    layer.num_kv_heads, layer.head_size = KV_HEADS, HEAD
    layer.impl = probe.scratch(attention, HEADS, KV_HEADS, HEAD)
    for name, value in _plugin().c8.PARAMETERS.items():
        layer.register_buffer(name, on.put(torch.full((channels,), value, dtype=torch.bfloat16)))
    _plugin().c8.derive(layer, "a layer")
    return layer


@check("kv_cache.engine", needed=False, claim="c8 follows", limit_s=LIFE_S + 30)
def engine(on: Setting, numbers: dict) -> None:
    """Has an engine the scales of each sync in every layer, after a sleep too, and refuses to serve without?"""
    found = _lived()
    numbers |= found
    numbers[IN_SHORT] = f"{found['tokens as with a BF16 cache']:.0%} of the tokens as with a BF16 cache"
    require(all(found["held after each sync"]), f"not the scales of the sync: {found['held after each sync']}")
    require(found["other tokens after a sync"], "the same tokens with other weights")
    require(found["held after a sleep"] and found["same tokens after a sleep"], "a sleep changed scales or tokens")
    require(bool(found["refused without scales"]), "a sync without scales was taken")
    require(not found["served meanwhile"], "it generated without the scales of the step")
    require(found["served then"], "it does not generate after a whole sync")


@cache
def _lived() -> dict:
    tools.need_packages(*LIFE)
    with tools.folder() as folder:
        command = tools.module("npu_smoke.kv_life", str(folder))
        variables = {"VLLM_ASCEND_ENABLE_NZ": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        return tools.answer(command, LIFE_S, folder, variables)


@cache
def _plugin() -> SimpleNamespace:
    """The plugin's modules for C8; vLLM's plugins are loaded with it."""
    tools.need_packages(*PACKAGES)
    from ascend_quant.integrations.vllm import register

    register()
    from ascend_quant.integrations.vllm_ascend import c8, c8_probe, compat

    if compat.C8Scheme is None:
        raise NotPossible("this vllm-ascend has no int8 KV cache (C8)")
    return SimpleNamespace(c8=c8, probe=c8_probe)


def _attention() -> tuple[type, object]:
    """vllm-ascend's attention with C8, and our probe."""
    plugin = _plugin()
    from vllm_ascend.attention.attention_v1 import AscendC8AttentionBackendImpl

    return AscendC8AttentionBackendImpl, plugin.probe
