"""The refit benchmark on the CPU at a small size: its rows, its byte checks, its weights. No time is judged."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ending import ended_soon
from naming import has_line_naming
from typer.testing import CliRunner

from ascend_quant import oracle
from ascend_quant.kernels import cpu
from ascend_quant.schemes.tensors import buckets
from benchmarks import kernels, matrices, methods, refit, tasks
from benchmarks.models import MODELS, get_model
from benchmarks.report import Outcome, faults_of
from benchmarks.tasks import Task, carry_out
from benchmarks.tensors import Weights, total_bytes
from benchmarks.timing import once, rotated, summary

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def test_command_on_the_cpu(tmp_path):
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.refit", "--device", "cpu", "--parts", "kernels", "--rounds", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(out.read_text())
    assert found["faults"] == [] and found["hardware"]["cores"] and found["versions"]["torch"]
    rows = {row["method"]: row for row in found["rows"]}
    assert {"copy", "ours", "ours, no receipt", "ours, refit by plan", "FlashRL", "vLLM online"} <= rows.keys()
    assert {f"ours, {kind}" for kind in methods.FP8} <= rows.keys()
    for row in rows.values():
        assert row["ms"]["low"] <= row["ms"]["median"] <= row["ms"]["high"]
        assert row["bytes_per_second"] > 0 and row["moved"] > 0


def test_wrong_bytes_end_the_command_with_1(monkeypatch):
    wrong = {"samples": {}, "layers": 2, "bytes": 1, "faults": ["a.weight: wrong"]}
    monkeypatch.setattr(tasks, "carry_out", lambda task, seconds: Outcome(task, 0.0, wrong))
    run = CliRunner().invoke(refit.app, ["--device", "cpu", "--parts", "kernels"])
    assert run.exit_code == 1 and has_line_naming(run.stdout, "tiny kernels", "a.weight")


def test_a_task_that_fails_says_its_last_words():
    outcome = carry_out(Task("nonsense", "tiny", "cpu"), 60)
    assert outcome.result is None and "benchmarks.nonsense" in outcome.error
    assert faults_of([outcome]) == [outcome.error]


def test_a_task_out_of_time_is_gone_with_what_it_has_started(monkeypatch, tmp_path):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! >{tmp_path}/started\nwait\n")
    program.chmod(0o755)
    monkeypatch.setattr(tasks.sys, "executable", str(program))
    outcome = carry_out(Task("kernels", "tiny", "cpu"), 1.0)
    started = int((tmp_path / "started").read_text())
    assert ended_soon(started)
    assert outcome.result is None


def test_the_check_of_part_kernels_sees_a_wrong_byte(monkeypatch):
    found = matrices.matrices_of(get_model("tiny").cut(1), CPU, seed=0)
    assert kernels.int8_faults(found, CPU) == []

    def write(jobs, counters):
        cpu.write(jobs, counters)
        jobs[-1].batch.writes[-1].target.view(torch.int8)[-1, -1] ^= 1

    monkeypatch.setattr(kernels, "kernels_for", lambda device: SimpleNamespace(write=write))
    wrong, digest = kernels.int8_faults(found, CPU)
    assert wrong.startswith(f"{found[-1].name}: ") and digest.startswith("digest ")


def test_competitors_quantize(monkeypatch):
    """Each stays within one step of the oracle's codes: they are timed for doing the work."""
    monkeypatch.setattr(methods, "find_spec", lambda name: None)  # importing vLLM takes seconds
    found = matrices.matrices_of(get_model("tiny").cut(1), CPU, seed=0)
    for name, call in methods.competitors(found).items():
        for matrix in found:
            matrix.codes.fill_(99)
        call()
        for matrix in found:
            codes, _ = oracle.quantize_weight(matrix.source)
            assert (codes.int() - matrix.codes.int()).abs().max() <= 1, name


def test_models_have_their_true_sizes():
    sizes = {name: sum(torch.Size(s).numel() for s in model.shapes().values()) for name, model in MODELS.items()}
    assert sizes["qwen2.5-0.5b"] == 494_032_768
    assert sizes["qwen2.5-7b"] == 7_615_616_512
    assert sizes["qwen2.5-32b"] == 32_763_876_352
    assert sizes["qwen3-30b-a3b"] == 30_532_122_624
    assert matrices.elements(MODELS["qwen2.5-7b"]) == 6_525_288_448
    experts = [name for name in matrices.shapes_of(MODELS["qwen3-30b-a3b"]) if ".experts." in name]
    assert len(experts) == 18_432


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
def test_weights_exist_once_and_change_in_place(name):
    weights = Weights(get_model(name), CPU, seed=1)
    named, stacked = weights.named(), weights.stacked()
    assert total_bytes(named) == total_bytes(stacked) == total_bytes(weights.stores.items())
    storages = {tensor.untyped_storage().data_ptr() for _, tensor in named}
    assert storages == {tensor.untyped_storage().data_ptr() for _, tensor in stacked}
    before = [tensor.clone() for _, tensor in named]
    weights.step()
    assert all(not torch.equal(old, new) for old, (_, new) in zip(before, named, strict=True) if old.dim() > 1)
    parts = list(buckets(named, limit=100_000))
    assert [pair for part in parts for pair in part] == named
    assert all(total_bytes(part) <= 100_000 or len(part) == 1 for part in parts)


def test_timing_says_median_and_spread():
    assert summary([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0, "count": 3}
    assert [rotated([1, 2, 3], turn) for turn in (0, 1, 5)] == [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    taken = once(lambda: None, CPU)
    assert 0 <= taken.host_ms <= taken.ms and taken.extra_bytes is None
