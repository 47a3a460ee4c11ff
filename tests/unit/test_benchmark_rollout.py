"""The rollout benchmark: its lengths, its engines, its command on a CPU engine, its ratios."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest
import torch
from typer.testing import CliRunner

from ascend_quant.schemes.registry import no_cache_on_cpus
from benchmarks import generation, rollout
from benchmarks.generation import SCHEMES, with_cache
from benchmarks.models import get_model
from benchmarks.report import Outcome
from benchmarks.rollout_worker import fill
from benchmarks.tasks import Rollouts, Task

ROOT = Path(__file__).parents[2]


def task(model: str = "tiny", contexts: tuple = (64,), batches: tuple = (4,), **more) -> Task:
    return Task("generation", model, "cuda", rollouts=Rollouts(batches, contexts=contexts), **more)


@pytest.mark.parametrize(
    ("model", "context", "batch"),
    [("qwen2.5-7b", 30720, 32), ("qwen3-30b-a3b", 30720, 32), ("qwen2.5-32b", 1024, 7)],
)
def test_lengths_are_ragged_and_have_the_context_in_the_mean(model, context, batch):
    found = generation.lengths(task(model), context, batch)
    assert mean(found) == pytest.approx(context, rel=0.001) and len(found) == batch
    assert found == generation.lengths(task(model), context, batch) != sorted(found)
    steps, positions = generation.steps(context, batch), get_model(model).positions
    assert max(found) + steps <= positions
    room = min(context // 2, positions - context - steps)
    assert (min(found), max(found)) == (context - room, context + room) and room > context / 4


@pytest.mark.parametrize(
    ("schemes", "caches", "engines"),
    [
        (["bf16", "int8-ours"], ["auto", "int8"], [("bf16", "auto"), ("int8-ours", "auto"), ("int8-ours", "int8")]),
        (["bf16"], ["fp8"], [("bf16", "auto"), ("bf16", "fp8")]),
        (["int8-ours"], ["int8"], [("int8-ours", "int8")]),
        (["fp8-vllm"], ["int8", "auto", "fp8-vllm"], [("fp8-vllm", "auto"), ("fp8-vllm", "fp8-vllm")]),
    ],
)
def test_bf16_weights_have_one_cache_beside_others(schemes, caches, engines):
    assert rollout.engines_of(schemes, caches) == engines


def test_our_caches_are_an_option_of_our_engines():
    for scheme in ("bf16", "int8-ours"):
        made = with_cache(SCHEMES[scheme], "int8")
        told = made["hf_overrides"]["quantization_config"]
        assert (made["quantization"], told["kv_cache"]) == ("ascend_quant", "int8") and "kv_cache_dtype" not in made
        assert told["scheme"] == scheme.removesuffix("-ours")
    assert "kv_cache" not in SCHEMES["int8-ours"]["hf_overrides"]["quantization_config"]
    assert with_cache(SCHEMES["bf16"], "fp8-vllm") == {"kv_cache_dtype": "fp8"}
    with pytest.raises(ValueError, match="int8-vllm"):
        with_cache(SCHEMES["fp8-vllm"], "int8")


def test_engines_take_turns_at_being_first(monkeypatch):
    asked = []
    monkeypatch.setattr(rollout, "in_turn", lambda tasks, seconds, write: asked.extend(tasks) or [])
    options = ["--context", "8k,30K,100", "--kv-cache", "int8,fp8-vllm", "--batch", "8,16", "--memory", "0.8"]
    CliRunner().invoke(rollout.app, ["--models", "7b", *options])
    turn = [("bf16", "auto"), ("int8-ours", "int8"), ("int8-ours", "fp8-vllm")]
    assert [(one.scheme, one.cache) for one in asked] == [*turn, *turn[1:], turn[0]]
    assert {one.rollouts for one in asked} == {Rollouts((8, 16), contexts=(8192, 30720, 100), memory=0.8)}
    assert generation.options_of(asked[1])["gpu_memory_utilization"] == 0.8


def command_on_the_cpu(out: Path, *options: str) -> dict:
    pytest.importorskip("vllm")
    command = [sys.executable, "-m", "benchmarks.rollout", "--device", "cpu", "--repeats", "1", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(out.read_text())


@pytest.mark.long("benchmarks")
def test_whole_answers_on_the_cpu(tmp_path):
    size = ["--models", "tiny-moe", "--schemes", "bf16,int8-ours", "--batch", "2,3", "--prompt", "4", "--answer", "9"]
    found = command_on_the_cpu(tmp_path / "run.json", *size)
    rows = {(row["scheme"], row["batch"]): row for row in found["rows"]}
    assert rows.keys() == {(scheme, batch) for scheme in ("bf16", "int8-ours") for batch in (2, 3)}
    assert rows["int8-ours", 3]["ratio"] == pytest.approx(rows["int8-ours", 3]["rate"] / rows["bf16", 3]["rate"])
    assert rows["bf16", 2]["ratio"] == 1 and found["faults"] == []


@pytest.mark.long("benchmarks")
@pytest.mark.skipif(no_cache_on_cpus("fp8") is not None, reason="vLLM's FP8 cache needs AVX-512, this CPU has none")
def test_decode_steps_on_the_cpu(tmp_path):
    size = ["--models", "tiny", "--context", "32,64", "--kv-cache", "fp8", "--batch", "3", "--schemes", "bf16"]
    found = command_on_the_cpu(tmp_path / "run.json", *size)
    rows = {(row["cache"], row["context"]): row for row in found["rows"]}
    assert rows.keys() == {(cache, context) for cache in ("auto", "fp8") for context in (32, 64)}
    assert rows["fp8", 64]["fits"] == 2 * rows["auto", 64]["fits"]
    assert all(len(row["rates"]) == generation.ROUNDS for row in rows.values())
    assert found["outcomes"][1]["result"]["measured"][1]["mean_context"] > 64


def outcome(scheme: str, cache: str, rates: list[float], fits: int = 100) -> Outcome:
    one = {"context": 8192, "batch": 64, "fits": fits, "rates": rates}
    return Outcome(task("qwen2.5-7b", scheme=scheme, cache=cache), 1.0, {"measured": [one]})


def test_ratios_are_of_medians_over_rounds_and_engines():
    outcomes = [outcome("bf16", "auto", [64, 51.2]), outcome("bf16", "auto", [80]), outcome("int8-ours", "auto", [])]
    outcomes += [outcome("int8-ours", "int8", [128], 205), outcome("int8-ours", "int8", [64, 64], 200)]
    plain, none, ours = rollout.rows_of(outcomes)
    assert (plain.rates, plain.rate, plain.ratio) == ((64, 51.2, 80), 64, 1)
    assert (none.rate, none.ratio) == (None, None)
    assert (ours.rate, ours.ratio, ours.fits) == (64, 1, 200)


@pytest.mark.parametrize("kind", [torch.int8, torch.bfloat16])
def test_random_weights_have_one_spread_whatever_keeps_them(kind):
    largest = 127 if kind == torch.int8 else 0
    values, scale = torch.empty(64, 512, dtype=kind), torch.empty(64, 1)
    generator = torch.Generator().manual_seed(0)
    fill("w.weight", values, largest, generator)
    if largest:
        fill("w.weight_scale", scale, largest, generator)
    else:
        scale.fill_(1)
    assert (values.float() * scale).std().item() == pytest.approx(0.02, rel=0.05)
