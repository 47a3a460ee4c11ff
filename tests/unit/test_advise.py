"""The arithmetic of the roofline against counts made in another way."""

from dataclasses import replace
from itertools import combinations, product
from math import prod

import pytest
import torch
from naming import line_naming
from torch.utils.flop_counter import FlopCounterMode

from ascend_quant.advise import AdviceError, rollouts, roofline, serving, steps
from ascend_quant.advise.caches import CACHES, caches, no_quantized_cache
from ascend_quant.advise.devices import DATA_SHEETS, GIB, H200, get_device
from ascend_quant.advise.engines import Engine
from ascend_quant.advise.families import shape_of
from ascend_quant.advise.feeds import distinct_experts
from ascend_quant.advise.layers import FP8, INT8, Attention, Experts, Latent, Linear, Mlp
from ascend_quant.advise.memory import DoesNotFit, cache_bytes, memory
from ascend_quant.advise.operators import operators
from ascend_quant.advise.rollouts import rollout
from ascend_quant.advise.shapes import Layer, Shape, weight_bytes
from ascend_quant.advise.workloads import Workload
from benchmarks.models import get_model

MODELS = ("qwen2.5-7b", "qwen2.5-32b", "qwen3-30b-a3b")
SERVINGS = {each.name: each for each in (serving.BF16, serving.OURS, serving.THEIRS, serving.FP8)}
LATENT = Latent(heads=4, q_rank=None, kv_rank=24, nope=16, rope=8, value_dim=12)


def shape(name):
    return shape_of(get_model(name).config())


def engine(name, scheme="bf16", device=H200, **split):
    return Engine(shape(name) if isinstance(name, str) else name, SERVINGS[scheme], device, **split)


def counted(made, step, *parts):
    """Operations and bytes of these parts."""
    found = [each for each in operators(made, step) if each.part in parts]
    return sum(each.times * each.operations for each in found), sum(each.bytes for each in found)


def test_time_of_one_product():
    device = replace(H200, bandwidth=1e12, rates={"bf16": 1e14, "int8": 3e14})
    start = roofline.KERNEL_SECONDS + roofline.PIPELINE_SECONDS
    small = steps.product("part", "bf16", 1, (4096, 8192), efficiency=0.5)
    moved = 2 * (4096 * 8192 + 4096 + 8192)
    assert small.seconds(device) == pytest.approx(moved / 0.5e12 + start)
    large = steps.product("part", "int8", 10_000, (4096, 8192))
    assert large.seconds(device) == pytest.approx(2 * 10_000 * 4096 * 8192 / 3e14 + start)
    assert replace(large, times=2).seconds(device) == pytest.approx(2 * large.seconds(device))
    assert set(large.causes(device)) == {roofline.FLOPS, roofline.STARTS, roofline.LINKS}
    weights, moved = (small.causes(device)[cause] for cause in (roofline.WEIGHTS, roofline.MOVED))
    assert weights / moved == pytest.approx(4096 * 8192 / (4096 + 8192))


def tensors(name):
    """Matrices of the checkpoint: whether a scheme quantizes each, and its shape."""
    for leaf, sizes in get_model(name).shapes().items():
        if len(sizes) > 1:
            kept = any(word in leaf for word in ("embed_tokens", "lm_head", "mlp.gate.weight"))
            yield leaf, not kept, sizes


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_the_checkpoint(name):
    """Codes of one byte, a float32 a row of what is quantized, and the rest in BF16."""
    kept = sum(2 * prod(sizes) for _, quantized, sizes in tensors(name) if not quantized)
    codes = sum(prod(sizes) for _, quantized, sizes in tensors(name) if quantized)
    rows = sum(prod(sizes[:-1]) for _, quantized, sizes in tensors(name) if quantized)
    for scheme in ("int8", "fp8"):
        assert weight_bytes(shape(name), scheme) == {"quantized": codes, "scales": 4 * rows, "rest": kept}
    assert weight_bytes(shape(name), "bf16") == {"quantized": 0, "scales": 0, "rest": kept + 2 * codes}


@pytest.mark.parametrize("scheme", ["bf16", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_one_token_meets_each_weight_once(name, scheme):
    """Two operations a weight, of experts' the chosen ones'; and no more bytes than that, but for activations."""
    model = get_model(name)
    weights = {steps.MATRICES: 0, steps.EXPERTS: 0, steps.LM_HEAD: 0, steps.OTHER: 0}
    for leaf, quantized, sizes in tensors(name):
        if "experts" in leaf:
            weights[steps.EXPERTS] += prod(sizes) // model.experts * model.top_k
        elif quantized:
            weights[steps.MATRICES] += prod(sizes)
        elif "embed" not in leaf:
            weights[steps.LM_HEAD if "lm_head" in leaf else steps.OTHER] += prod(sizes)
    for part, count in weights.items():
        operations, moved = counted(engine(name, scheme), steps.decode(1, 1), part)
        assert operations == pytest.approx(2 * count)
        item = 1 if scheme == "int8" and part in (steps.MATRICES, steps.EXPERTS) else 2
        if part != steps.OTHER:
            assert item * count <= moved <= 1.01 * item * count


def test_shared_experts_are_met_by_every_token():
    feeds = Experts(6, 2, 32), Experts(6, 2, 32, shared=48, shared_gate=True)
    without, shared = (engine(Shape(64, 32, False, (Layer(Attention(4, 4, 16), feed, 3),))) for feed in feeds)
    assert shared.shape.parameters() - without.shape.parameters() == 3 * (3 * 64 * 48 + 64)
    (before, _), (after, _) = (counted(made, steps.decode(5, 1), steps.MATRICES) for made in (without, shared))
    assert after - before == 5 * 2 * 3 * 3 * 64 * 48


@pytest.mark.parametrize(("total", "chosen", "rows"), [(4, 2, 1), (4, 2, 3), (5, 1, 3), (3, 3, 2)])
def test_distinct_experts_against_all_choices(total, chosen, rows):
    choices = list(product(combinations(range(total), chosen), repeat=rows))
    mean = sum(len({expert for row in choice for expert in row}) for choice in choices) / len(choices)
    assert distinct_experts(total, chosen, rows) == pytest.approx(mean)


def test_attention_reads_the_cache_and_sees_half_a_prompt():
    model = get_model("qwen2.5-7b")
    _, moved = counted(engine(model.name), steps.decode(3, 100), steps.ATTENTION)
    token = model.layers * 2 * model.kv_heads * model.head_dim * 2
    queries = model.layers * 3 * 2 * model.heads * model.head_dim * 2
    assert moved == (300 + 2 * 3) * token + queries  # the new ones are read and written once more
    assert cache_bytes(engine(model.name), 300) == 300 * token
    seen = sum(range(1, 51))  # one prompt of 50, each row itself and those before it
    operations, _ = counted(engine(model.name), steps.prefill(2 * 50, 50), steps.ATTENTION)
    assert operations == pytest.approx(model.layers * 2 * seen * 4 * model.heads * model.head_dim)


@pytest.mark.parametrize(("tokens", "window"), [(50, 8), (5, 8), (8, 8)])
def test_a_window_bounds_what_is_seen_and_kept(tokens, window):
    made = engine(Shape(64, 32, False, (Layer(Attention(4, 2, 16, window), Mlp(64), 3),)))
    seen = sum(min(row, window) for row in range(1, tokens + 1))
    operations, _ = counted(made, steps.prefill(tokens, tokens), steps.ATTENTION)
    assert operations == pytest.approx(3 * seen * 4 * 4 * 16)
    operations, _ = counted(made, steps.decode(2, tokens), steps.ATTENTION)
    assert operations == 3 * 2 * min(tokens, window) * 4 * 4 * 16
    assert cache_bytes(made, tokens) == 3 * min(tokens, window) * 2 * 2 * 16 * 2


def test_decoding_with_latents():
    """Against torch's count: queries into the latent's space, scores, their sum of latents, values."""
    batch, seen, heads, rank = 3, 10, LATENT.heads, LATENT.kv_rank
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        latents, rotated = torch.zeros(batch, seen, rank), torch.zeros(batch, seen, LATENT.rope)
        queries = torch.einsum("bhn,hnr->bhr", torch.zeros(batch, heads, 16), torch.zeros(heads, 16, rank))
        scores = torch.einsum("bhr,btr->bht", queries, latents)
        scores = scores + torch.einsum("bhe,bte->bht", torch.zeros(batch, heads, LATENT.rope), rotated)
        mixed = torch.einsum("bht,btr->bhr", scores, latents)
        torch.einsum("bhr,hrv->bhv", mixed, torch.zeros(heads, rank, 12))
    made = engine(Shape(64, 32, False, (Layer(LATENT, Mlp(64), 1),)))
    operations, _ = counted(made, steps.decode(batch, seen), steps.ATTENTION)
    assert operations == counter.get_total_flops()


def test_latents_are_whole_on_each_device():
    whole = Shape(64, 32, False, (Layer(LATENT, Mlp(64), 5),))
    for tp in (1, 2, 4):
        assert cache_bytes(engine(whole, tp=tp), 7) == 7 * 5 * (24 + 8) * 2
        assert cache_bytes(engine(whole, tp=tp, cache=FP8), 7) == 7 * 5 * (24 + 8)
    derived = 5 * 2 * 24 * 4 * (16 + 12)  # kv_b once more, in BF16
    assert weight_bytes(whole, "int8")["rest"] == derived + 2 * 2 * 32 * 64


def test_a_state_does_not_grow():
    made = engine(Shape(64, 32, False, (Layer(Linear(2, 4, 8, 8, 4), Mlp(64), 2),)))
    assert cache_bytes(made, 1) == cache_bytes(made, 10**6) == 2 * (4 * 8 * 8 + (2 * 2 * 8 + 4 * 8) * 3) * 2
    (_, few), (_, many) = (counted(made, steps.decode(3, context), steps.ATTENTION) for context in (10, 10**6))
    assert few == many > 2 * 3 * cache_bytes(made, 1)
    assert replace(made, cache=FP8).cache != made.cache
    assert cache_bytes(replace(made, cache=FP8), 1) == cache_bytes(made, 1)


@pytest.mark.parametrize(("scheme", "kernels"), [("bf16", 0), ("int8", 1), ("int8-vllm", 4), ("fp8", 4)])
def test_quantization_is_counted_where_there_is_any(scheme, kernels):
    """In front of o alone where norms and SiLU write codes; else also of qkv, gate_up and down."""
    step, rows = steps.decode(8, 10), 28 * 8
    found = [each for each in operators(engine("qwen2.5-7b", scheme), step) if each.part == steps.QUANTIZATION]
    assert sum(each.times * each.kernels for each in found) == kernels * 28
    inputs = {0: 0, 1: 3584, 4: 3 * 3584 + 18944}[kernels]
    assert sum(each.bytes for each in found) == rows * (3 * inputs + 4 * kernels)
    (_, before), (_, after) = (counted(engine("qwen2.5-7b", each), step, steps.OTHER) for each in ("bf16", scheme))
    assert before - after == (rows * (2 * 3584 + 18944 - 3 * 4) if kernels == 1 else 0)


def test_devices_share_weights_and_repeat_few_key_value_heads():
    whole = shape("qwen3-30b-a3b")
    routers = 2 * 48 * 128 * 2048  # whole on each device
    for scheme in ("bf16", "int8"):
        for tp in (2, 4):
            one, share = (weight_bytes(whole, scheme, n) for n in (1, tp))
            assert tp * (share["rest"] - routers) == one["rest"] - routers
            assert tp * share["quantized"] == one["quantized"]
    token = cache_bytes(engine(whole), 1)
    assert cache_bytes(engine(whole, tp=4), 1) == cache_bytes(engine(whole, tp=8), 1) == token / 4


@pytest.mark.parametrize(
    ("tp", "dp", "whole"), [(4, 1, False), (4, 1, True), (1, 4, True), (2, 4, True), (2, 2, False)]
)
def test_devices_together_do_the_work_of_one(tp, dp, whole):
    """Experts: their bytes, and the operations of all groups' rows, are shared by all devices."""
    split, one = engine("qwen3-30b-a3b", tp=tp, dp=dp, expert_parallel=whole), engine("qwen3-30b-a3b")
    own, all_of_it = (
        counted(each, steps.decode(rows, 9), steps.EXPERTS)[0] for each, rows in ((split, 8), (one, 8 * dp))
    )
    assert tp * dp * own == pytest.approx(all_of_it)
    experts, rest = 2 * 48 * 128 * 3 * 2048 * 768, 2 * 48 * 128 * 2048 + 2 * 48 * 2048 * 128 * 72 / tp
    embeddings = 2 * 2 * 151936 * 2048 / tp
    assert weight_bytes(split.shape, "bf16", tp, dp, whole)["rest"] == experts / (tp * dp) + rest + embeddings


def test_collectives():
    workload = Workload(2, 64, 256, 512)
    found = rollout(engine("qwen2.5-7b", tp=2), workload).step.parts[steps.DEVICES]
    link = H200.link * roofline.LINK_EFFICIENCY
    reduced = (2 * 28 + 1) * (H200.all_reduce_seconds + 64 * 3584 * 2 / link)  # two devices: each byte goes once
    assert found == pytest.approx(reduced + H200.all_reduce_seconds + 64 * 152064 * 2 / 2 / link)
    assert not rollout(engine("qwen2.5-7b"), replace(workload, tp=1)).step.parts.get(steps.DEVICES)
    exchanged = rollout(engine("qwen3-30b-a3b", dp=2, expert_parallel=True), Workload(1, 64, 256, 512, 2, True))
    half = (
        H200.all_reduce_seconds + 64 * 2048 * 2 / 2 / link
    )  # each group's 32 rows go to the other, and their sums back
    assert exchanged.step.parts[steps.DEVICES] == pytest.approx(48 * 2 * half)


@pytest.mark.parametrize("tp", [0, 3, 16])
def test_models_that_cannot_be_split(tp):
    with pytest.raises(AdviceError, match=rf"--tp .*{tp}"):
        shape("qwen2.5-7b").of_one_device(tp)


def test_experts_that_cannot_be_split():
    with pytest.raises(AdviceError, match=line_naming("--expert-parallel", "experts")):
        shape("qwen2.5-7b").of_one_device(1, 2, True)
    odd = Shape(64, 32, False, (Layer(Attention(4, 4, 16), Experts(6, 2, 32), 1),))
    assert odd.of_one_device(4).experts.width == 8
    with pytest.raises(AdviceError, match=line_naming(4, "experts 6")):
        odd.of_one_device(4, 1, True)


def test_all_time_is_accounted_for():
    workload = Workload(1, 64, 256, 512)
    for scheme in SERVINGS:
        found = rollout(engine("qwen3-30b-a3b", scheme), workload)
        assert sum(found.shares().values()) == pytest.approx(1)
        assert set(found.step.parts) <= set(steps.PARTS)
        for phase in (found.step, found.prefill):
            assert sum(phase.causes.values()) == pytest.approx(phase.seconds)
        assert found.prefills == 64 * 256 / 8192
        assert found.seconds == pytest.approx(2 * found.prefill.seconds + 512 * found.step.seconds)
        assert found.tokens_per_second == pytest.approx(64 * 512 / found.seconds)


@pytest.mark.parametrize(
    ("batch", "inputs", "outputs", "decoding", "prompts"),
    [
        (1, 1024, 64, roofline.WEIGHTS, roofline.FLOPS),
        (128, 8192, 64, roofline.CACHED, roofline.FLOPS),
        (1, 1, 1, roofline.WEIGHTS, roofline.WEIGHTS),
    ],
)
def test_what_bounds_each_phase(batch, inputs, outputs, decoding, prompts):
    found = rollout(engine("qwen2.5-7b"), Workload(1, batch, inputs, outputs))
    assert (found.step.bound, found.prefill.bound) == (decoding, prompts)
    slow = replace(H200, rates={"bf16": 1e13})
    assert rollout(engine("qwen2.5-7b", device=slow), Workload(1, 64, 16, 64)).step.bound == roofline.FLOPS


def test_without_graphs_the_host_may_be_slower():
    made, workload = engine("qwen2.5-7b"), Workload(1, 64, 256, 512)
    graphs = rollout(made, workload).step
    unknown = rollout(made, replace(workload, eager=True)).step
    assert unknown == graphs
    device = graphs.seconds - rollouts.STEP_SECONDS
    for launch in (1e-6, 50e-6):
        found = rollout(made, replace(workload, eager=True, launch=launch)).step
        assert found.seconds == pytest.approx(max(device, graphs.kernels * launch) + rollouts.STEP_SECONDS)
    assert found.bound == roofline.STARTS


def test_memory_limits_the_sequences_that_run_at_once():
    workload = Workload(1, 4096, 1024, 1024)
    made = engine("qwen2.5-32b")
    weights, sequence = sum(weight_bytes(made.shape, "bf16").values()), cache_bytes(made, 2048)
    held = memory(made, workload)
    for share in (0.9, 0.6):
        usable, places = share * H200.memory, memory(made, replace(workload, memory=share)).fits
        assert weights + places * sequence <= usable < weights + (places + 1) * sequence
    assert memory(engine("qwen2.5-32b", "int8"), workload).fits > held.fits
    assert memory(replace(made, cache=FP8), workload).fits in (2 * held.fits, 2 * held.fits + 1)
    assert held.side_by_side(replace(workload, batch=5)) == 5
    assert held.side_by_side(replace(workload, limit=7)) == 7
    found = rollout(made, workload)
    assert found.concurrent == held.fits
    rounds = 4096 / held.fits
    assert found.seconds == pytest.approx(found.prefills * found.prefill.seconds + rounds * 1024 * found.step.seconds)


def test_sequences_that_fit_as_the_notes_have_them():
    """30B-A3B, 2,048 + 30,720 tokens, on 4 dies of A3: counted by hand for 0.9 and 0.6 of the memory."""
    for scheme, share, places in (("int8", 0.9, 67), ("int8", 0.6, 41), ("bf16", 0.9, 57), ("bf16", 0.6, 32)):
        made = engine("qwen3-30b-a3b", scheme, get_device("A3"), tp=4)
        assert memory(made, Workload(4, 256, 2048, 30720, memory=share)).fits == places


def test_a_model_larger_than_the_device():
    with pytest.raises(DoesNotFit, match=r"bf16 does not fit: 61\.0 GiB .* 57\.6 GiB are usable; raise --tp"):
        rollout(engine("qwen2.5-32b", device=get_device("A2")), Workload(1, 8, 256, 256))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory": 0.0}, "--memory .* not 0"),
        ({"memory": 1.5}, "--memory .* not 1.5"),
        ({"dp": 0}, "--dp must be"),
        ({"dp": 65}, "--batch 64 leaves some of --dp 65"),
        ({"limit": 0}, "--max-num-seqs"),
        ({"launch": 1e-6}, "--launch-us is for --eager"),
        ({"launch": 0.0, "eager": True}, "--launch-us must be"),
    ],
)
def test_impossible_workloads(changes, words):
    with pytest.raises(AdviceError, match=words):
        replace(Workload(1, 64, 256, 512), **changes)


def test_caches_by_device():
    dense = shape("qwen2.5-7b")
    had = {name: set(caches(serving.OURS, get_device(name), dense)) for name in DATA_SHEETS}
    assert {name for name in had if FP8 in had[name]} == {"H100", "H200"}
    assert {name for name in had if INT8 in had[name]} == {"A100", "H100", "H200"}
    for name, found in had.items():
        refused = no_quantized_cache(get_device(name), dense)
        assert set(refused) == set(CACHES) - {cache.name for cache in found} and "auto" not in refused
    assert INT8 not in caches(serving.THEIRS, H200, dense)  # the int8 cache is this plugin's
    assert {each.name for each in serving.servings(get_device("A2"))} == {"bf16", "int8"}
    assert {each.name for each in serving.servings(get_device("A100"))} == {"bf16", "int8", "int8-vllm"}
    assert not any(each.measured for each in serving.servings(get_device("A2")))


def test_devices():
    assert (H200.bandwidth, *H200.rates.values()) == (4.27e12, 695e12, 1279e12, 1210e12)  # DESIGN.md
    assert get_device("H200") is H200
    assert {name for name in DATA_SHEETS if "fp8" not in get_device(name).rates} == {"A2", "A3", "A100"}
    found, sheet = get_device("A3"), DATA_SHEETS["A3"]
    assert found.bandwidth / sheet.bandwidth == pytest.approx(4.27 / 4.8)
    assert found.rates["int8"] / sheet.rates["int8"] == pytest.approx(1279 / 1979)
    assert "nobody measured" in found.source and sheet.memory == 64 * GIB


def test_figures_of_ones_own():
    found = get_device("A2", bandwidth=1.3e12, rates={"int8": 5e14, "bf16": None})
    assert found.bandwidth == 1.3e12 and found.rates["int8"] == 5e14
    assert found.rates["bf16"] == get_device("A2").rates["bf16"]
    assert found.source.startswith("bandwidth, int8 rate given")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("B200",), "no device 'B200'; known: A2, A3, A100, H100, H200"),
        (("A2", None, {"fp8": 1e15}), "A2 has no fp8 units: leave out --fp8-rate"),
        (("A2", 0.0), "--bandwidth .* not 0"),
        (("H200", None, {"int8": float("inf")}), "--int8-rate .* not inf"),
    ],
)
def test_impossible_devices(arguments, words):
    with pytest.raises(AdviceError, match=words):
        get_device(*arguments)
