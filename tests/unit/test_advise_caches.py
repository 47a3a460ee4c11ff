"""Quantized caches in the estimate, against a count that shares nothing with it: the model's sizes written out here."""

from dataclasses import replace
from math import ceil

import pytest

from ascend_quant.advise import serving
from ascend_quant.advise.caches import caches, no_quantized_cache
from ascend_quant.advise.contexts import CONTEXTS, at_context, at_contexts
from ascend_quant.advise.devices import GIB, H200, get_device
from ascend_quant.advise.engines import Engine
from ascend_quant.advise.families import shape_of
from ascend_quant.advise.layers import AUTO, FP8, INT8, Attention, Latent, Linear, Mlp
from ascend_quant.advise.memory import cache_bytes, memory
from ascend_quant.advise.rollouts import rollout
from ascend_quant.advise.shapes import Layer, Shape
from ascend_quant.advise.verdicts import advise
from ascend_quant.advise.workloads import Workload
from benchmarks.models import get_model

BANDWIDTH = 4.27e12
# layers, key-value heads, parameters of products outside the experts, of the head, of one expert, experts, chosen
SIZES = {
    "qwen2.5-7b": (28, 4, 28 * (3584 * (28 + 2 * 4) * 128 + 28 * 128 * 3584 + 3 * 3584 * 18944), 152064 * 3584),
    "qwen2.5-32b": (64, 8, 64 * (5120 * (40 + 2 * 8) * 128 + 40 * 128 * 5120 + 3 * 5120 * 27648), 152064 * 5120),
    "qwen3-30b-a3b": (48, 4, 48 * (2048 * (32 + 2 * 4) * 128 + 32 * 128 * 2048), 151936 * 2048),
}
EXPERT, EXPERTS, CHOSEN, ROUTER = 3 * 2048 * 768, 128, 8, 128 * 2048
ELEMENTS = {"qwen2.5-7b": 28_672, "qwen2.5-32b": 131_072, "qwen3-30b-a3b": 49_152}  # of a token, as the notes have them
# ms a step of the notes on the cost model: BF16 weights and cache, INT8 weights, those with an int8 cache
NOTED = {
    ("qwen2.5-7b", 8192, 1): (3.4, 1.9, 1.8),
    ("qwen2.5-7b", 8192, 32): (6.8, 5.3, 3.6),
    ("qwen2.5-7b", 30_000, 64): (29.1, 27.6, 15.1),
    ("qwen2.5-32b", 8192, 32): (31.1, 23.8, 16.0),
    ("qwen2.5-32b", 30_000, 8): (29.7, 22.4, 15.3),
    ("qwen3-30b-a3b", 8192, 32): (18.5, 12.3, 9.4),
    ("qwen3-30b-a3b", 30_000, 8): (11.6, 8.6, 6.0),
    ("qwen3-30b-a3b", 30_000, 64): (58, 51, 30),
}


def shape(name):
    return shape_of(get_model(name).config())


def engine(model, scheme="bf16", cache=AUTO, device=H200, **split):
    one = {"bf16": serving.BF16, "int8": serving.OURS}[scheme]
    return Engine(shape(model) if isinstance(model, str) else model, one, device, cache, **split)


def token_bytes(name, cache):
    """Keys and values of one token: a head of 128 has 128 codes and 4 bytes, 128 codes, or 256 bytes."""
    layers, heads = SIZES[name][:2]
    return layers * heads * 2 * {"int8": 128 + 4, "fp8": 128, "auto": 256}[cache.name]


def step_ms(name, scheme, cache, context, batch):
    """What a step reads, over the bandwidth; of the experts those that random choices reach."""
    _, _, dense, head = SIZES[name]
    item = {"bf16": 2, "int8": 1}[scheme]
    read = item * dense + 2 * head + batch * context * token_bytes(name, cache)
    if name.startswith("qwen3"):
        reached = EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** batch)
        read += 48 * (item * reached * EXPERT + 2 * ROUTER)
    return 1e3 * read / BANDWIDTH


@pytest.mark.parametrize(("name", "context", "batch"), NOTED)
def test_the_floor_of_a_step_is_what_it_reads(name, context, batch):
    roomy = replace(H200, memory=1 << 43)  # some of the notes' rows fit no device
    workload = Workload(1, batch, context // 2, context // 2, memory=1.0)
    columns = ("bf16", AUTO), ("int8", AUTO), ("int8", INT8)
    for (scheme, cache), noted in zip(columns, NOTED[name, context, batch], strict=True):
        made = engine(name, scheme, cache, roomy)
        found = at_context(made, workload, memory(made, workload), context)
        assert found.sequences == batch and found.seconds > found.floor
        assert 1e3 * found.floor == pytest.approx(step_ms(name, scheme, cache, context, batch), rel=0.005)
        assert 1e3 * found.floor == pytest.approx(noted, abs=0.06 if noted < 30 else 0.6)


@pytest.mark.parametrize("name", SIZES)
def test_bytes_of_a_token(name):
    for cache in (AUTO, INT8, FP8):
        assert cache_bytes(engine(name, cache=cache), 1) == token_bytes(name, cache)
    assert token_bytes(name, FP8) == ELEMENTS[name]
    assert cache_bytes(engine(name, cache=INT8, tp=4), 1) == token_bytes(name, INT8) / 4


@pytest.mark.parametrize("cache", [AUTO, INT8, FP8])
def test_sequences_that_fit_and_waves(cache):
    """By hand: what the weights leave of 0.9 of the memory, over a sequence's cache."""
    workload = Workload(1, 1000, 1024, 30_720 - 1024)
    _, _, dense, head = SIZES["qwen2.5-7b"]
    embedding, rows = head, 28 * (3584 + 2 * 512 + 3584 + 2 * 18944 + 3584)
    left = 0.9 * 140 * GIB - (dense + 2 * (head + embedding) + 4 * rows)
    fits = int(left // (30_720 * token_bytes("qwen2.5-7b", cache)))
    found = rollout(engine("qwen2.5-7b", "int8", cache), workload)
    assert (found.memory.fits, found.concurrent, found.waves) == (fits, fits, ceil(1000 / fits))
    by_context = {
        each.context: each for each in at_contexts(engine("qwen2.5-7b", "int8", cache), workload, found.memory)
    }
    assert list(by_context) == list(CONTEXTS)
    assert by_context[30_720].fits == fits and by_context[1024].sequences == 1000
    assert by_context[8192].fits == int(left // (8192 * token_bytes("qwen2.5-7b", cache)))


def test_twice_the_sequences_fit():
    workload = Workload(1, 4096, 512, 8192 - 512)
    fits = {c.name: rollout(engine("qwen2.5-7b", "int8", c), workload).memory.fits for c in (AUTO, INT8, FP8)}
    plain = rollout(engine("qwen2.5-7b"), workload).memory.fits
    assert fits["fp8"] in (2 * fits["auto"], 2 * fits["auto"] + 1)
    assert fits["int8"] / fits["auto"] == pytest.approx(256 / 132, rel=0.01) and fits["int8"] > 2 * plain


LATENT = Latent(heads=4, q_rank=None, kv_rank=24, nope=16, rope=8, value_dim=12)
FULL, WINDOW, STATE = Attention(4, 2, 16), Attention(4, 2, 16, window=8), Linear(2, 4, 8, 8, 4)


@pytest.mark.parametrize(
    ("mixers", "names"),
    [
        ((LATENT,), ("auto",)),
        ((FULL, STATE), ("auto",)),
        ((FULL, WINDOW), ("auto", "fp8")),
        ((FULL, LATENT), ("auto",)),
        ((FULL,), ("auto", "int8", "fp8")),
        ((WINDOW,), ("auto", "int8", "fp8")),
    ],
)
def test_what_the_engine_refuses_is_not_estimated(mixers, names):
    model = Shape(64, 32, False, tuple(Layer(mixer, Mlp(64), 2) for mixer in mixers))
    assert tuple(cache.name for cache in caches(serving.OURS, H200, model)) == names
    advice = advise(model, H200, Workload(1, 4, 8, 8), {})
    refused = {"int8", "fp8"} - set(names)
    assert {f"{name} cache" for name in refused} == set(advice.absent)
    assert {name for name in advice.rollouts if name.startswith("int8,")} == {f"int8, {n} cache" for n in names[1:]}


def test_a_gpu_without_fp8_units():
    refused = no_quantized_cache(get_device("A100"), shape("qwen2.5-7b"))
    assert set(refused) == {"fp8"} and "A100" in refused["fp8"]


def test_the_verdict_on_a_cache():
    workload = Workload(1, 160, 512, 16384 - 512)
    advice = advise(shape("qwen2.5-7b"), H200, workload, {})
    told = advice.verdicts["int8, int8 cache"]
    plain, quantized = advice.rollouts["int8"], advice.rollouts["int8, int8 cache"]
    assert f"{quantized.tokens_per_second / plain.tokens_per_second:.2f} times" in told
    assert str(quantized.memory.fits) in told and str(plain.memory.fits) in told
    assert set(advice.contexts) == set(advice.rollouts)
