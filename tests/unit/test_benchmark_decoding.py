"""The rollout benchmark by context: its lengths, its engines, its command on a CPU engine, its ratios and bars."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest
from naming import has_line_naming
from typer.testing import CliRunner

from benchmarks import decoding, decoding_report, rollout, rollout_report
from benchmarks.caches import CACHES, head_bytes, options
from benchmarks.floors import Rates, floors
from benchmarks.generation import SCHEMES
from benchmarks.models import get_model
from benchmarks.tasks import Outcome, Rollouts, Task

ROOT = Path(__file__).parents[2]


def task(model: str = "tiny", contexts: tuple = (64,), batches: tuple = (4,), **more) -> Task:
    return Task("decoding", model, "cuda", variant="int8-ours", rollouts=Rollouts(batches, contexts=contexts), **more)


@pytest.mark.parametrize(
    ("model", "context", "batch"),
    [("qwen2.5-7b", 8192, 64), ("qwen2.5-7b", 30720, 32), ("qwen3-30b-a3b", 30720, 32), ("qwen2.5-32b", 1024, 7)],
)
def test_lengths_are_ragged_and_have_the_context_in_the_mean(model, context, batch):
    found = decoding.lengths(task(model), context, batch)
    assert mean(found) == pytest.approx(context, rel=0.001) and len(found) == batch
    assert found == decoding.lengths(task(model), context, batch) != sorted(found)
    steps, positions = decoding.steps(context, batch), get_model(model).positions
    assert max(found) + steps <= positions
    room = min(context // 2, positions - context - steps)
    assert (min(found), max(found)) == (context - room, context + room) and room > context / 4
    gaps = [b - a for a, b in zip(sorted(found), sorted(found)[1:], strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_a_sequence_alone_has_the_context():
    assert decoding.lengths(task(), 64, 1) == [64]
    with pytest.raises(ValueError, match="512 positions"):
        decoding.lengths(task(), 480, 2)


@pytest.mark.parametrize(
    ("schemes", "caches", "engines"),
    [
        (
            ["bf16", "int8-ours"],
            ["auto", "int8"],
            [("bf16", "auto"), ("int8-ours", "auto"), ("int8-ours", "int8")],
        ),
        (["bf16"], ["auto", "fp8"], [("bf16", "auto"), ("bf16", "fp8")]),
        (["bf16"], ["fp8"], [("bf16", "auto"), ("bf16", "fp8")]),
        (["int8-ours"], ["int8"], [("int8-ours", "int8")]),
        (["fp8-vllm"], ["int8", "auto", "fp8-vllm"], [("fp8-vllm", "auto"), ("fp8-vllm", "fp8-vllm")]),
    ],
)
def test_bf16_weights_have_one_cache_beside_others(schemes, caches, engines):
    assert rollout.engines_of(schemes, caches) == engines


def test_our_caches_are_an_option_of_our_engines():
    for scheme in ("bf16", "int8-ours"):
        made = options(SCHEMES[scheme], "int8")
        told = made["hf_overrides"]["quantization_config"]
        assert (made["quantization"], told["kv_cache"]) == ("ascend_quant", "int8") and "kv_cache_dtype" not in made
        assert told["scheme"] == scheme.removesuffix("-ours")
    assert "kv_cache" not in SCHEMES["int8-ours"]["hf_overrides"]["quantization_config"]
    assert options(SCHEMES["bf16"], "fp8-vllm") == {"kv_cache_dtype": "fp8"}
    with pytest.raises(ValueError, match="int8-vllm"):
        options(SCHEMES["fp8-vllm"], "int8")


def test_engines_take_turns_at_being_first(monkeypatch):
    asked = []
    monkeypatch.setattr(rollout, "in_turn", lambda tasks, seconds, write: asked.extend(tasks) or [])
    options = ["--models", "7b", "--context", "8k,30K,100", "--kv-cache", "int8,fp8-vllm", "--batch", "8,16", "--trace"]
    CliRunner().invoke(rollout.app, options)
    assert {one.part for one in asked} == {"decoding"}
    assert [(one.variant, one.cache) for one in asked] == [
        *(("bf16", "auto"), ("int8-ours", "int8"), ("int8-ours", "fp8-vllm")),
        *(("int8-ours", "int8"), ("int8-ours", "fp8-vllm"), ("bf16", "auto")),
    ]
    assert {one.rollouts.contexts for one in asked} == {(8192, 30720, 100)}
    assert [one.rollouts.trace for one in asked] == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--context", "8x"], ("--context", "'8x'")),
        (["--context", "0"], ("--context", "'0'")),
        (["--context", "1k", "--models", "tiny"], ("--context", "512 positions")),
        (["--context", "64", "--kv-cache", "int4"], ("--kv-cache", "'int4'", "fp8-vllm")),
        (["--context", "64", "--device", "cpu", "--models", "tiny"], ("--kv-cache", "int8", "CPUs")),
    ],
)
def test_wrong_use(arguments, words):
    run = CliRunner().invoke(rollout.app, arguments)
    assert run.exit_code == 2
    assert has_line_naming(" ".join(run.output.replace("│", " ").split()), *words)


def test_command_on_the_cpu(tmp_path):
    pytest.importorskip("vllm")
    out = tmp_path / "result.json"
    size = ["--models", "tiny", "--context", "32,64", "--kv-cache", "fp8", "--batch", "3", "--schemes", "bf16"]
    command = [sys.executable, "-m", "benchmarks.rollout", "--device", "cpu", "--repeats", "1", *size]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(out.read_text())
    assert found["faults"] == []
    rows = {(row["cache"], row["context"]): row for row in found["rows"]}
    assert rows.keys() == {(cache, context) for cache in ("auto", "fp8") for context in (32, 64)}
    assert rows["fp8", 64]["fits"] == 2 * rows["auto", 64]["fits"] and rows["fp8", 64]["more_fit"] == 2
    one = found["outcomes"][1]["result"]["decoding"][1]
    assert len(one["step_s"]) == decoding.ROUNDS and mean(one["lengths"]) == 64 < one["mean_context"]
    assert rows["fp8", 64]["rates"] == pytest.approx([3 / seconds for seconds in one["step_s"]])
    assert decoding_report.markdown(rollout_report.read(out)).count("| tiny ") == 4


def outcome(cache: str, seconds: list[float], fits: int = 100, model: str = "qwen2.5-7b", device: str = "cuda", **more):
    scheme = "bf16" if cache == "base" else "int8-ours"
    made = Task(
        "decoding", model, device, variant=scheme, cache=cache.replace("base", "auto"), rollouts=Rollouts((64,))
    )
    one = {"context": 8192, "batch": 64, "fits": fits, "step_s": seconds, **more}
    return Outcome(made, 1.0, {"decoding": [one], "faults": []})


def attention(times: float) -> dict:
    return {"trace": {"parts": [{"name": "attention", "us": 10 * times, "count": 28, "floor_us": 10.0}]}}


@pytest.mark.parametrize(
    ("gain", "fits", "more", "met"),
    [
        (1.46, 205, {}, True),
        (1.44, 205, {}, False),
        (1.46, 195, {}, False),
        (1.46, 205, attention(1.4), True),
        (1.46, 205, attention(1.6), False),
    ],
)
def test_the_bars_of_the_issue(gain, fits, more, met):
    outcomes = [outcome("base", [1.0, 1.0]), outcome("int8", [1 / gain] * 2, fits, **more), outcome("auto", [0.9])]
    rows = {(row.scheme, row.cache): row for row in decoding_report.rows_of(outcomes)}
    ours = rows["int8-ours", "int8"]
    assert (ours.met, ours.least) == (met, 1.45) and ours.ratio == pytest.approx(gain)
    assert ours.more_fit == pytest.approx(fits / 100)
    assert rows["int8-ours", "auto"].met is None and rows["bf16", "auto"].met is None


def test_the_spread_is_over_rounds_and_engines_and_bars_are_for_whole_models():
    outcomes = [outcome("base", [1.0, 1.25], device="cpu"), outcome("base", [0.8], device="cpu")]
    outcomes.append(outcome("int8", [], device="cpu"))
    rows = {row.cache: row for row in decoding_report.rows_of(outcomes)}
    assert rows["auto"].rates == (64, 51.2, 80) and rows["auto"].rate == 64
    assert rows["auto"].spread == pytest.approx((80 - 51.2) / 64)
    assert (rows["int8"].rate, rows["int8"].ratio, rows["int8"].met) == (None, None, None)
    assert "does not fit" in decoding_report.markdown(outcomes)


def test_the_floor_of_attention_is_the_caches_bytes():
    model, rates = get_model("qwen2.5-32b"), Rates(4.27e12, 7e14)
    for name, head in (("auto", 256), ("int8", 132), ("fp8", 128), ("int8-vllm", 132), ("fp8-vllm", 128)):
        read = 24 * 8192 * 64 * 8 * 2 * head
        assert floors(model, "int8-ours", 24, 8192, rates, name)["attention"] == pytest.approx(1e6 * read / 4.27e12)
    assert {name: head_bytes(name, 128) for name in ("auto", "int8", "fp8")} == {"auto": 256, "int8": 132, "fp8": 128}
    assert set(CACHES) == {"auto", "int8", "fp8", "int8-vllm", "fp8-vllm"}
