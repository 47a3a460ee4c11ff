"""The roofline against the H200, and against counts made in another way."""

import json
from dataclasses import replace
from itertools import combinations, product
from math import prod
from pathlib import Path

import pytest

from ascend_quant.advise import AdviceError, experts, rollouts, roofline, steps, verdicts
from ascend_quant.advise.devices import DATA_SHEETS, GIB, H200, get_device
from ascend_quant.advise.rollouts import DoesNotFit, Workload, rollout
from ascend_quant.advise.shapes import shape_of
from benchmarks.models import get_model

# DESIGN.md, "Measured on one H200": tokens/s of vLLM 0.23.0 with 256 tokens in, by model, batch and tokens out.
TOKENS_PER_SECOND = {
    ("qwen2.5-7b", 64, 512): {"bf16": 9837, "int8": 12423, "fp8": 12365},
    ("qwen2.5-7b", 256, 512): {"bf16": 18518, "int8": 21347, "fp8": 21297},
    ("qwen2.5-7b", 64, 256): {"bf16": 9282, "int8": 11999},
    ("qwen2.5-7b", 256, 256): {"bf16": 16815, "int8": 22010},
    ("qwen2.5-32b", 64, 512): {"bf16": 2539, "int8": 3724},
    ("qwen2.5-32b", 256, 512): {"bf16": 4664, "int8": 6557},
    ("qwen3-30b-a3b", 64, 512): {"bf16": 3384, "int8": 4130},
    ("qwen3-30b-a3b", 256, 512): {"bf16": 9819, "int8": 9419},
}
CASES = [
    (*case, scheme, figures[scheme] / figures["bf16"])
    for case, figures in TOKENS_PER_SECOND.items()
    for scheme in figures
    if scheme != "bf16"
]
DENSE_CASES = [case for case in CASES if case[0] != "qwen3-30b-a3b"]
MODELS = ("qwen2.5-7b", "qwen2.5-32b", "qwen3-30b-a3b")


def shape(name):
    return shape_of(get_model(name).config())


def expected(name, batch, outputs, scheme, device=H200, efficiency=roofline.EFFICIENCY):
    workload = Workload(1, batch, 256, outputs)
    ours, base = (rollout(shape(name), each, device, workload, efficiency) for each in (scheme, "bf16"))
    return ours.tokens_per_second / base.tokens_per_second


@pytest.mark.parametrize(("name", "batch", "outputs", "scheme", "measured"), DENSE_CASES)
def test_speedups_of_dense_models_on_the_h200(name, batch, outputs, scheme, measured):
    assert expected(name, batch, outputs, scheme) == pytest.approx(measured, rel=0.2)


def test_the_uncertainty_that_verdicts_state():
    worst = max(abs(expected(*case[:4]) / case[4] - 1) for case in DENSE_CASES)
    assert worst < verdicts.UNCERTAINTY < 2 * worst


@pytest.mark.parametrize("factor", [0.8, 1.2])
@pytest.mark.parametrize("constant", ["kernel", "step", "efficiency"])
def test_no_constant_is_tuned(constant, factor, monkeypatch):
    """A fifth more or less of any of them leaves the speedups where they were asked to be."""
    if constant == "kernel":
        monkeypatch.setattr(roofline, "KERNEL_SECONDS", factor * roofline.KERNEL_SECONDS)
    if constant == "step":
        monkeypatch.setattr(rollouts, "STEP_SECONDS", factor * rollouts.STEP_SECONDS)
    efficiency = roofline.EFFICIENCY * (factor if constant == "efficiency" else 1)
    for *case, measured in DENSE_CASES:
        assert expected(*case, efficiency=efficiency) == pytest.approx(measured, rel=0.2)


def test_experts_stay_behind_the_roofline():
    assert shape("qwen3-30b-a3b") == experts.QWEN3_30B_A3B
    reached = experts.reached()
    assert sorted(reached) == [64, 256]
    for name, batch, outputs, scheme, measured in CASES:
        if name == "qwen3-30b-a3b":
            assert reached[batch] == pytest.approx((measured, expected(name, batch, outputs, scheme)))
            assert measured < 0.8 * reached[batch][1]


def test_our_experts_reach_it_in_the_run_that_is_kept():
    file = Path(__file__).parents[2] / "benchmarks/results/2026-11-23-h200-x2-rollout.json"
    rows = [row for row in json.loads(file.read_text())["rows"] if row["model"] == "qwen3-30b-a3b"]
    rates = {(row["batch"], row["scheme"]): round(row["rate"]) for row in rows}
    assert {batch: (rates[batch, "bf16"], rates[batch, "int8-ours"]) for batch in (64, 256)} == experts.OURS
    for measured, expected in experts.reached(experts.OURS).values():
        assert measured == pytest.approx(expected, rel=verdicts.UNCERTAINTY)


def test_time_of_one_product():
    device = replace(H200, bandwidth=1e12, rates={"bf16": 1e14, "int8": 3e14})
    small = steps.product("part", "bf16", rows=1, k=4096, n=8192)
    moved = 2 * (4096 * 8192 + 4096 + 8192)
    assert small.seconds(device, 0.5) == pytest.approx(moved / 0.5e12 + roofline.KERNEL_SECONDS)
    large = steps.product("part", "int8", rows=10_000, k=4096, n=8192)
    assert large.seconds(device, 0.5) == pytest.approx(2 * 10_000 * 4096 * 8192 / 3e14 + roofline.KERNEL_SECONDS)
    twice = replace(large, times=2)
    assert twice.seconds(device, 0.5) == pytest.approx(2 * large.seconds(device, 0.5))


def tensors(name):
    """Matrices of the checkpoint: whether a scheme quantizes each, and its shape."""
    for leaf, sizes in get_model(name).shapes().items():
        if len(sizes) > 1:
            kept = any(word in leaf for word in ("embed_tokens", "lm_head", "mlp.gate.weight"))
            yield leaf, not kept, sizes


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_the_checkpoint(name):
    bytes_of = {
        scheme: sum(prod(sizes) * (1 if quantized and scheme != "bf16" else 2) for _, quantized, sizes in tensors(name))
        for scheme in ("bf16", "int8", "fp8")
    }
    for scheme, size in bytes_of.items():
        assert steps.weight_bytes(shape(name), scheme, 1) == size


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
    found = list(steps.operators(shape(name), scheme, steps.decode(1, 1), 1, H200))
    for part, count in weights.items():
        operations = sum(each.times * each.operations for each in found if each.part == part)
        assert operations == pytest.approx(2 * count)
        moved = sum(each.times * each.moved for each in found if each.part == part)
        item = 1 if scheme == "int8" and part in (steps.MATRICES, steps.EXPERTS) else 2
        if part != steps.OTHER:
            assert item * count <= moved <= 1.01 * item * count


@pytest.mark.parametrize(("total", "chosen", "rows"), [(4, 2, 1), (4, 2, 3), (5, 1, 3), (3, 3, 2)])
def test_distinct_experts_against_all_choices(total, chosen, rows):
    choices = list(product(combinations(range(total), chosen), repeat=rows))
    mean = sum(len({expert for row in choice for expert in row}) for choice in choices) / len(choices)
    assert steps.distinct_experts(total, chosen, rows) == pytest.approx(mean)


def attention(name, step, tp=1):
    (found,) = (each for each in steps.operators(shape(name), "bf16", step, tp, H200) if each.part == steps.ATTENTION)
    return found


def test_attention_reads_the_cache_and_sees_half_a_prompt():
    model = get_model("qwen2.5-7b")
    found = attention(model.name, steps.decode(3, 100))
    cached = 3 * 100 * 2 * model.kv_heads * model.head_dim * 2
    queries = 3 * 2 * model.heads * model.head_dim * 2
    assert found.times * found.moved == model.layers * (cached + queries)
    assert steps.cache_bytes(shape(model.name), 1) * 300 == model.layers * cached
    seen = sum(range(1, 51))  # one prompt of 50, each row itself and those before it
    found = attention(model.name, steps.prefill(2 * 50, 50))
    assert found.operations == pytest.approx(2 * seen * 4 * model.heads * model.head_dim)


@pytest.mark.parametrize("scheme", ["bf16", "int8", "fp8"])
def test_quantization_is_counted_where_there_is_any(scheme):
    found = [
        each
        for each in steps.operators(shape("qwen2.5-7b"), scheme, steps.decode(8, 10), 1, H200)
        if each.part == steps.QUANTIZATION
    ]
    kernels = sum(each.times * each.kernels for each in found)
    assert kernels == (0 if scheme == "bf16" else 4 * 28)  # in front of qkv, o, gate_up and down
    if found:
        read = 8 * (3584 + 3584 + 3584 + 18944)
        assert sum(each.moved for each in found) == 3 * read + 4 * 4 * 8


def test_devices_share_weights_and_repeat_few_key_value_heads():
    whole = shape("qwen3-30b-a3b")
    for scheme in ("bf16", "int8"):
        for tp in (2, 4):
            routers = 2 * 48 * 128 * 2048  # whole on each device
            share = steps.weight_bytes(whole, scheme, tp) - routers
            assert tp * share == steps.weight_bytes(whole, scheme, 1) - routers
    assert steps.cache_bytes(whole, 4) == steps.cache_bytes(whole, 8) == steps.cache_bytes(whole, 1) / 4


def test_all_reduces():
    workload = Workload(2, 64, 256, 512)
    found = rollout(shape("qwen2.5-7b"), "bf16", H200, workload).step[steps.DEVICES]
    link = H200.link * roofline.LINK_EFFICIENCY
    reduced = (2 * 28 + 1) * (H200.all_reduce_seconds + 64 * 3584 * 2 / link)  # two devices: each byte goes once
    assert found == pytest.approx(reduced + H200.all_reduce_seconds + 64 * 152064 * 2 / 2 / link)
    assert steps.DEVICES not in rollout(shape("qwen2.5-7b"), "bf16", H200, replace(workload, tp=1)).step


@pytest.mark.parametrize("tp", [0, 3, 16])
def test_models_that_cannot_be_split(tp):
    with pytest.raises(AdviceError, match=rf"--tp .*{tp}"):
        shape("qwen2.5-7b").of_one_device(tp)


def test_all_time_is_accounted_for():
    workload = Workload(1, 64, 256, 512)
    for scheme in ("bf16", "int8"):
        found = rollout(shape("qwen3-30b-a3b"), scheme, H200, workload)
        assert sum(found.shares(workload).values()) == pytest.approx(1)
        assert set(found.step) <= set(steps.PARTS)
        assert found.seconds == pytest.approx(sum(found.prefill.values()) + 512 * sum(found.step.values()))
        assert found.tokens_per_second == pytest.approx(64 * 512 / found.seconds)


def test_prompts_beyond_one_step_take_proportionally_longer():
    once, thrice = (
        sum(rollout(shape("qwen2.5-7b"), "int8", H200, Workload(1, batch, 512, 8)).prefill.values())
        for batch in (16, 48)
    )
    assert thrice == pytest.approx(3 * once)


def test_memory_limits_the_sequences_that_run_at_once():
    model, workload = shape("qwen2.5-32b"), Workload(1, 4096, 1024, 1024)
    weights, sequence = steps.weight_bytes(model, "bf16", 1), steps.cache_bytes(model, 1) * 2048
    usable = rollouts.MEMORY_USED * H200.memory
    places = rollouts.concurrent_sequences(model, "bf16", H200, workload)
    assert weights + places * sequence <= usable < weights + (places + 1) * sequence
    assert rollouts.concurrent_sequences(model, "int8", H200, workload) > places
    assert rollouts.concurrent_sequences(model, "bf16", H200, replace(workload, batch=5)) == 5
    found = rollout(model, "bf16", H200, workload)
    rounds = 4096 / places
    assert found.seconds == pytest.approx(sum(found.prefill.values()) + rounds * 1024 * sum(found.step.values()))


def test_a_model_larger_than_the_device():
    with pytest.raises(DoesNotFit, match=r"bf16 does not fit: 61\.0 GiB .* 57\.6 GiB are usable; raise --tp"):
        rollout(shape("qwen2.5-32b"), "bf16", get_device("A2"), Workload(1, 8, 256, 256))


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
        (("A2", 0.0), "--bandwidth must be a positive number, not 0"),
        (("H200", None, {"int8": float("inf")}), "--int8-rate must be a positive number, not inf"),
    ],
)
def test_impossible_devices(arguments, words):
    with pytest.raises(AdviceError, match=words):
        get_device(*arguments)
