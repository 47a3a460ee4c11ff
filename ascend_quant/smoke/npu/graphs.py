"""Probes of in-place refits: no buffer moves, no memory leaks, and a captured ACL graph computes with the new values:
weights, and the scales of vllm-ascend's int8 KV cache (C8).
"""

import gc
from collections.abc import Callable, Sequence

import torch

from ascend_quant import oracle
from ascend_quant.kernels.npu.serve import experts as npu_experts
from ascend_quant.kernels.npu.serve import linear as npu_linear
from ascend_quant.refit import Refit
from ascend_quant.refit.resident import QuantizedWeight
from ascend_quant.smoke.npu import data
from ascend_quant.smoke.probes import NotPossible, On, Seen, differing, need, probe
from ascend_quant.smoke.results import without_traces

REFITS = 4
PAIRS = {"qwen2.5-7b": (28, 4), "qwen2.5-32b": (40, 8), "qwen3-30b-a3b": (32, 4), "documented": (64, 8)}
KV_HEADS, HEADS, HEAD = 2, 4, 128
Forward = Callable[[], torch.Tensor]


class Held:
    """Weights (.., N, K) on the device, with BF16 copies of their scales, and their refits."""

    def __init__(self, on: On, shapes: Sequence[tuple[int, ...]], nz: bool) -> None:
        self.on, self.storages = on, [data.storage(shape, nz, on) for shape in shapes]
        self.copies = [one.scale.to(torch.bfloat16) for one in self.storages]
        stand_ins = [torch.empty(shape, dtype=torch.int8, device="meta") for shape in shapes]
        self.weights = [
            QuantizedWeight(f"weight {number}", data_, one.scale, data_.shape[-1], layout=one.layout, copies=[copy])
            for number, (data_, one, copy) in enumerate(zip(stand_ins, self.storages, self.copies, strict=True))
        ]
        self.refit = Refit(self.weights)

    def write(self, seed: int) -> list[torch.Tensor]:
        """Refit with new values, and return them."""
        values = [data.weights(*weight.data.shape, seed=seed) for weight in self.weights]
        with self.refit.session() as session:
            for weight, value in zip(self.weights, values, strict=True):
                slot = session.batch.new_sources([(weight.name, value.numel())])
                session.write(slot, weight, weight.data, self.on.put(value))
        return values

    def where(self) -> list[int]:
        """Return the addresses and the formats of the weights."""
        import torch_npu

        tensors = [one for storage in self.storages for one in (storage.codes, storage.scale)] + self.copies
        return [*(one.data_ptr() for one in tensors), *(torch_npu.get_npu_format(one.codes) for one in self.storages)]


@probe("operators.refits", "refits move nothing and keep no memory, and captured ACL graphs follow them", ("npu",))
def refits(on: On) -> Seen:
    """Refit linear layers in ND and FRACTAL_NZ, and a mixture of experts, as they are served."""
    seen, (n, k) = Seen(), (96, 64) if on.small else data.SEVEN_B[0]
    x_MK = on.put(data.tokens(16, k, seed=64))
    for nz in (False, True):
        held = Held(on, [(n, k)], nz)
        (weight,) = held.storages
        _refitted(
            seen, f"linear {'NZ' if nz else 'ND'}", held, lambda w=weight: npu_linear.linear(x_MK, w.codes, w.scale)
        )
    count, hidden, length = (4, 64, 64) if on.small else (8, 768, 2048)
    held = Held(on, [(count, 2 * hidden, length), (count, length, hidden)], nz=True)
    (w13, w2), tokens = held.storages, on.put(data.tokens(32, length, seed=65))
    weight_MT = on.put(torch.full((32, 2), 0.5))
    expert_MT = on.put(torch.rand(32, count, generator=data.generator(66)).topk(2).indices)

    def mixture() -> torch.Tensor:
        codes = [one.codes.transpose(1, 2) for one in (w13, w2)]
        return npu_experts.experts(tokens, weight_MT, expert_MT, codes[0], w13.scale, codes[1], held.copies[1])

    _refitted(seen, "experts", held, mixture)
    return seen


def _refitted(seen: Seen, name: str, held: Held, forward: Forward) -> None:
    """Capture a graph, then refit and replay it: the output must equal that of an eager call."""
    held.write(65)
    replay, captured = captured_if_possible(seen, forward)
    before, last, kept, apart = held.where(), forward().cpu(), [], 0
    for turn in range(REFITS):
        values = held.write(66 + turn)
        for value, copy in zip(values, held.copies, strict=True):  # codes and scales are tested by operators.codes
            seen.same(f"{name}: copied scales", copy, oracle.quantize_weight(value)[1].to(torch.bfloat16))
        found = forward().cpu()
        seen.holds(not torch.equal(found, last), f"{name}: after a refit it computes what it computed before")
        if captured is not None:
            replay()
            torch.npu.synchronize()
            seen.same(f"{name}: replay {turn + 1}, beside an eager call", captured, found)
            apart += bool(differing(captured, found))
        last = found
        if turn in (0, REFITS - 1):
            kept.append(_reserved(held.on))
    if captured is not None:
        seen.values[f"{name}: replays apart"] = apart
    seen.values[f"{name}: bytes reserved after one refit and after {REFITS}"] = kept
    seen.holds(kept[1] <= kept[0], f"{name}: {kept[0]} bytes were reserved after a refit, {kept[1]} after {REFITS}")
    seen.holds(held.where() == before, f"{name}: addresses and formats were {before}, and are now {held.where()}")


def captured_if_possible(seen: Seen, forward: Forward) -> tuple[Callable[[], None], torch.Tensor | None]:
    """Return a replay of a captured call, and the output that it overwrites; None, with a note, if capture fails."""
    one = torch.ones(16, device="npu")
    try:
        _captured(lambda: one + 1)
    except Exception as why:  # not even an addition can be captured
        seen.values["no graphs"] = str(why).partition("\n")[0]
        return lambda: None, None
    return _captured(forward)


def _captured(forward: Forward) -> tuple[Callable[[], None], torch.Tensor]:
    forward()  # compiles and allocates before the capture
    torch.npu.synchronize()
    stream, graph = torch.npu.current_stream(), torch.npu.NPUGraph()
    try:
        with torch.npu.graph(graph):
            output = forward()
    finally:
        torch.npu.set_stream(stream)  # a capture that fails to begin leaves its stream current
    return graph.replay, output


def _reserved(on: On) -> int:
    gc.collect()
    torch.npu.synchronize()
    torch.npu.empty_cache()
    return torch.npu.memory_reserved(on.device)


@probe(
    "operators.c8",
    "attention decodes from an int8 cache with the scales of the last sync, in a captured graph too",
    ("npu",),
)
def c8(on: On) -> Seen:
    attention, plugin, probing = _plugin()
    seen = Seen()
    for name, pair in PAIRS.items():  # a refusal for one may not apply to another
        try:
            error = probing.largest_error(probing.scratch(attention, *pair, HEAD), torch.bfloat16, on.device)
        except Exception as why:  # its message is the result
            error = without_traces(f"{type(why).__name__}: {why}")
        seen.values[f"error with the heads of {name}"] = error
        seen.holds(isinstance(error, float) and error < probing.TOLERANCE, f"heads of {name}: {error}")
    layer = _layer(attention, plugin, probing, on)
    buffers = plugin.C8Buffers({"layers.0.self_attn": layer}, KV_HEADS, rank=0, ranks=1)
    shapes = (sum(probing.LENGTHS), KV_HEADS, HEAD), (len(probing.LENGTHS), HEADS, HEAD)
    keys, query = (torch.randn(shape, generator=data.generator(shape[1])).to(torch.bfloat16) for shape in shapes)
    there, asked = on.put(keys), on.put(query)
    metadata, pages = probing.pages(KV_HEADS, HEAD, on.device)

    def forward() -> torch.Tensor:
        codes = layer.impl._quantize_kv_to_int8(there, there, layer, len(keys))
        layer.impl._reshape_and_cache(asked, *codes, pages, metadata, None)
        return layer.impl._forward_c8_decode(asked, metadata, torch.empty_like(asked), layer)

    replay, captured = captured_if_possible(seen, forward)
    for largest in (0.5, 2.0, 8.0):  # the first one clips
        buffers.write({"layers.0.self_attn": torch.full((2, KV_HEADS * HEAD), largest / 127)})
        replay()
        found = forward() if captured is None else captured
        scale = float(torch.tensor(largest / 127, dtype=torch.bfloat16))
        rows = (keys.double() / scale).round().clamp(-128, 127) * scale  # which are also the values
        off = probing.off(found, probing.attention(query, [rows, rows]))
        seen.values[f"largest error with keys up to {largest}"] = off
        seen.holds(
            off < probing.TOLERANCE, f"decoding with keys up to {largest} is off by {off:.3g} of the largest value"
        )
    return seen


def _layer(attention: type, plugin, probing, on: On) -> torch.nn.Module:
    """Return a layer's refit as the plugin creates it, without vLLM."""
    layer, channels = torch.nn.Module(), KV_HEADS * HEAD
    layer.num_kv_heads, layer.head_size = KV_HEADS, HEAD
    layer.impl = probing.scratch(attention, HEADS, KV_HEADS, HEAD)
    for name, value in plugin.PARAMETERS.items():
        layer.register_buffer(name, on.put(torch.full((channels,), value, dtype=torch.bfloat16)))
    plugin.derive(layer, "a layer")
    return layer


def _plugin():
    """Set up vllm-ascend's attention with C8, our scale buffers, and our probe of it; vLLM's plugins are loaded."""
    need("vllm", "vllm_ascend")
    from ascend_quant.integrations.vllm import register

    register()
    from ascend_quant.integrations.vllm_ascend import c8, c8_probe, compat

    if compat.C8Scheme is None:
        raise NotPossible("this vllm-ascend has no int8 KV cache (C8)")
    from vllm_ascend.attention.attention_v1 import AscendC8AttentionBackendImpl

    return AscendC8AttentionBackendImpl, c8, c8_probe
