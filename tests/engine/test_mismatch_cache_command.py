"""`ascend-quant mismatch --kv-cache fp8` on a real engine, against transformers with rounded keys and values."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from models import VOCAB, make
from naming import has_line_naming

from ascend_quant.mismatch import emulated_cache
from ascend_quant.mismatch.cache_rounding import bf16, fp8

COMMAND = "import typer; from ascend_quant.commands.mismatch import mismatch; typer.run(mismatch)"
EDGES = (16, 32)


def run(*arguments: object, expected: int = 0) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", COMMAND, *map(str, arguments), "--gpu-memory-utilization", "0.3"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, "COLUMNS": "120"})
    assert found.returncode == expected, found.stdout[-3000:] + found.stderr[-5000:]
    return found


@pytest.fixture(scope="module")
def split(tmp_path_factory) -> tuple[Path, dict, str]:
    """The model, the report with all its tokens, and what was printed."""
    folder = tmp_path_factory.mktemp("split")
    model, report, plot = make("qwen2", folder), folder / "report.json", folder / "plot.png"
    drawn = torch.Generator().manual_seed(5)
    prompts = [torch.randint(2, VOCAB, (4 + i,), generator=drawn).tolist() for i in range(12)]
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": one}) for one in prompts))
    ended = run(
        model, "--scheme", "int8", "--kv-cache", "fp8", "--prompts", folder / "prompts.jsonl", "--max-tokens", 48,
        *(word for edge in EDGES for word in ("--bucket", edge)), "--no-try-suggestion",
        "--out", report, "--raw", "--plot", plot,
    )  # fmt: skip
    assert plot.read_bytes().startswith(b"\x89PNG")
    return model, json.loads(report.read_text()), ended.stdout


def test_every_part_follows_from_its_tokens(split):
    _, report, printed = split
    sampled = report["raw"]["noise"]
    parts = {part["name"]: part for part in report["cache"]["parts"]}
    assert list(parts) == list(report["raw"]["cache"]) == ["noise", "cache", "weights", "both"]
    for name, part in parts.items():
        for bucket in part["buckets"]:
            end = bucket["end"] or math.inf
            terms = [
                math.expm1(other - reference) - (other - reference)
                for one, scored in zip(sampled, report["raw"]["cache"][name], strict=True)
                for place, (reference, other) in enumerate(zip(one["rollout"], scored, strict=True))
                if bucket["first"] <= len(one["prompt"]) + place < end
            ]
            assert bucket["tokens"] == len(terms)
            assert bucket["k3_kl"] == pytest.approx(sum(terms) / len(terms), abs=1e-12)
    assert [bucket["end"] for bucket in parts["both"]["buckets"]] == [None, *EDGES, None]
    assert has_line_naming(printed, "KV cache: ", report["cache"]["dominant"])


def truncated(x: torch.Tensor, scale: float) -> torch.Tensor:
    """To the next code of e4m3 towards zero: vLLM 0.28's writer for CPUs drops the bits that do not fit."""
    kept = (x.bfloat16().float() / scale).clamp(-448, 448)
    step = 2.0 ** (kept.abs().clamp(min=2**-6).log2().floor() - 3)
    return (kept / step).trunc() * step * scale


def test_the_part_of_the_cache_is_its_rounding(split):
    """Token by token: what the engine's fp8 cache changes goes with what rounding keys and values changes."""
    model, report, _ = split
    sampled = report["raw"]["noise"]
    loaded = emulated_cache.load(str(model))

    def change(other: list[list[float]], reference: list[list[float]]) -> torch.Tensor:
        return torch.cat([torch.tensor(a) - torch.tensor(b) for a, b in zip(other, reference, strict=True)])

    def emulated(rounding: emulated_cache.Rounding) -> list[list[float]]:
        return [emulated_cache.logprobs(loaded, one["prompt"], one["response"], rounding) for one in sampled]

    def scaled(rounding: Callable[[torch.Tensor, float], torch.Tensor]) -> emulated_cache.Rounding:
        return lambda x, layer, kind: rounding(x, scales[layer]["kv".index(kind)])

    scales = next(part for part in report["cache"]["parts"] if part["name"] == "cache")["scales"]
    engine = change(report["raw"]["cache"]["cache"], [one["rollout"] for one in sampled])
    exact = emulated(emulated_cache.everywhere(bf16))
    changes = {name: change(emulated(scaled(each)), exact) for name, each in (("nearest", fp8), ("cut", truncated))}
    correlations = {name: torch.corrcoef(torch.stack([engine, one]))[0, 1].item() for name, one in changes.items()}
    print(correlations, {name: one.std().item() for name, one in changes.items()}, engine.std().item())
    nearest = max(correlations, key=correlations.get)
    assert correlations[nearest] > 0.85
    assert engine.std().item() == pytest.approx(changes[nearest].std().item(), rel=0.2)


def test_both_are_larger_than_either(split):
    kl = {part["name"]: part["buckets"][0]["k3_kl"] for part in split[1]["cache"]["parts"]}
    assert kl["noise"] < kl["weights"] / 3 and kl["noise"] < kl["cache"] / 3
    assert kl["both"] > 0.8 * max(kl["cache"], kl["weights"])
    assert kl["both"] < 3 * (kl["cache"] + kl["weights"])


def test_an_int8_cache_is_refused_on_cpus(split):
    ended = run(split[0], "--scheme", "int8", "--kv-cache", "int8", expected=2)
    assert has_line_naming(ended.stderr, "--kv-cache int8", "CPUs", "--emulate-cache")
