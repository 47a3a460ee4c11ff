"""The refit benchmark on the CPU at a small size: its structure, its byte checks, its bars. No time is judged."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from naming import has_line_naming
from typer.testing import CliRunner

from ascend_quant import oracle
from ascend_quant.kernels import cpu
from benchmarks import bars, check, graphs, kernels, matrices, methods, process, refit, report
from benchmarks.layout import Rank, layout
from benchmarks.models import MODELS, get_model
from benchmarks.process import carry_out
from benchmarks.tasks import Outcome, Task
from benchmarks.tensors import Weights, buckets, total_bytes
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
    assert "times FlashRL's speed" in run.stdout and "not judged" in run.stdout
    found = json.loads(out.read_text())
    assert found["faults"] == [] and found["hardware"]["cores"] and found["versions"]["torch"]
    assert [outcome["result"]["checked"] for outcome in found["outcomes"]] == [14]
    rows = {row["method"]: row for row in found["rows"]}
    assert {"copy", "ours", "ours, no receipt", "ours, refit by plan", "FlashRL", "vLLM online"} <= rows.keys()
    assert {f"ours, {kind}" for kind in methods.FP8} <= rows.keys()
    for row in rows.values():
        assert row["ms"]["low"] <= row["ms"]["median"] <= row["ms"]["high"]
        assert row["bytes_per_second"] > 0 and row["moved"] > 0
    ratios = {bar["text"]: bar["value"] for bar in found["bars"]}
    assert len(ratios) >= 3 and all(value > 0 for value in ratios.values())


def test_wrong_bytes_end_the_command_with_1(monkeypatch):
    wrong = {"samples": {}, "layers": 2, "bytes": 1, "faults": ["a.weight: wrong"]}
    monkeypatch.setattr(refit, "carry_out", lambda task, seconds: Outcome(task, 0.0, wrong))
    run = CliRunner().invoke(refit.app, ["--device", "cpu", "--parts", "kernels"])
    assert run.exit_code == 1 and "tiny kernels: a.weight: wrong" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "tpu"], ": cuda, cpu"),
        (["--device", "cpu", "--model", "tiny,huge"], "'huge' is none of"),
        (["--device", "cpu", "--layers", "3"], "tiny has 1 to 2 layers, not 3"),
        (["--device", "cpu", "--parts", ""], ": kernels, engine"),
    ],
)
def test_wrong_arguments_say_what_there_is(arguments, said):
    run = CliRunner().invoke(refit.app, arguments, env={"COLUMNS": "200"})
    assert run.exit_code == 2 and said in run.output


def test_a_task_that_fails_says_its_last_words():
    outcome = carry_out(Task("nonsense", "tiny", "cpu"), 60)
    assert outcome.result is None and "No module named 'benchmarks.nonsense'" in outcome.error
    assert report.faults_of([outcome]) == [outcome.error]


def test_ctrl_c_ends_a_task_and_what_it_has_started():
    task = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True)
    started = psutil.Process(int(task.stdout.readline()))
    waits = iter([KeyboardInterrupt, None])

    def join(seconds=None):
        if (interrupt := next(waits)) is not None:
            raise interrupt

    with pytest.raises(KeyboardInterrupt):
        process._wait(SimpleNamespace(pid=task.pid, exitcode=None, join=join, kill=task.kill), 60)
    assert task.wait(10) == -signal.SIGKILL
    assert not psutil.wait_procs([started], 10)[1]


def test_the_check_of_part_kernels_sees_a_wrong_byte(monkeypatch):
    found = matrices.matrices_of(get_model("tiny").cut(1), CPU, seed=0)
    assert kernels.int8_faults(found, CPU) == [] and kernels.fp8_faults(found, CPU) == []

    def write(jobs, counters):
        cpu.write(jobs, counters)
        jobs[-1].moves.moves[-1].target_NK.view(torch.int8)[-1, -1] ^= 1

    monkeypatch.setattr(kernels, "kernels_for", lambda device: SimpleNamespace(write=write))
    wrong, digest = kernels.int8_faults(found, CPU)
    assert wrong.startswith(f"{found[-1].name}: ") and digest.startswith("digest ")
    assert len(kernels.fp8_faults(found, CPU)) == len(methods.FP8)


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
    weights.draw(1)
    assert all(torch.equal(old, new) for old, (_, new) in zip(before, named, strict=True))
    parts = list(buckets(named, limit=100_000))
    assert [pair for part in parts for pair in part] == named
    assert all(total_bytes(part) <= 100_000 or len(part) == 1 for part in parts)


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
@pytest.mark.parametrize("expert_parallel", [False, True])
def test_ranks_hold_every_part_once(name, expert_parallel):
    """The pieces of all ranks cover each tensor, and together they are the pieces of one rank."""
    model = get_model(name)
    layers = list(range(model.layers))
    covered = {tensor: torch.zeros(data.shape[:2]) for tensor, data in Weights(model, CPU, 1).named()}
    for index in range(2):
        for pieces in layout(model, layers, Rank(index, 2, expert_parallel)).values():
            for piece in pieces:
                whole = covered[piece.name]
                (whole[piece.rows, piece.columns] if whole.dim() > 1 else whole[piece.rows]).add_(1)
    for tensor, count in covered.items():
        copies = 2 if "norm" in tensor or tensor.endswith("mlp.gate.weight") else 1
        assert (count == copies).all(), tensor
    one = layout(model, layers, Rank())
    assert {piece.name for pieces in one.values() for piece in pieces} == covered.keys()


def test_heads_that_ranks_share():
    model = replace(get_model("tiny"), kv_heads=2)
    rows = [
        layout(model, [0], Rank(index, 4))["model.layers.0.self_attn.qkv_proj.weight"][1].rows for index in range(4)
    ]
    assert rows == [slice(0, 32), slice(0, 32), slice(32, 64), slice(32, 64)]


def test_check_finds_a_single_wrong_byte():
    model = get_model("tiny-moe")
    sent = dict(Weights(model, CPU, seed=1).named())
    expected = layout(model, [1], Rank(1, 2))
    held = engine_of(expected, sent)
    assert check.differing(held, sent, expected) == []
    held["model.layers.1.mlp.experts.w2_weight"].view(-1)[-1] ^= 1
    held["model.layers.1.self_attn.qkv_proj.weight_scale"][0] *= 2
    faults = check.differing(held, sent, expected)
    linear, experts = faults
    assert has_line_naming(
        linear, "model.layers.1.self_attn.qkv_proj.weight:", "model.layers.1.self_attn.q_proj.weight"
    )
    assert has_line_naming(
        experts, "model.layers.1.mlp.experts.w2_weight:", "model.layers.1.mlp.experts.5.down_proj.weight"
    )
    del held["lm_head.weight"]
    assert any(has_line_naming(fault, "no parameter lm_head.weight") for fault in check.differing(held, sent, expected))


def engine_of(pieces_of: dict, sent: dict) -> dict[str, torch.Tensor]:
    """What an engine that follows the layout holds."""
    held = {}
    for name, pieces in pieces_of.items():
        sources = [sent[piece.name][piece.rows] for piece in pieces]
        if not name.endswith(("_proj.weight", "w13_weight", "w2_weight")):
            held[name] = torch.cat(sources)
            continue
        both = [oracle.quantize_weight(source) for source in sources]
        held[name] = torch.cat([codes[:, piece.columns] for (codes, _), piece in zip(both, pieces, strict=True)])
        held[f"{name}_scale"] = torch.cat([scale for _, scale in both]).unsqueeze(-1)
    return held


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


def test_bars_are_judged_on_whole_models_on_a_gpu_alone():
    def sample(ms: float) -> dict:
        return {"ms": ms, "host_ms": 1.0, "extra_bytes": 1 << 20}

    def outcome(model: str, ms: float, **more) -> Outcome:
        result = {"moved": 1000, "first": {"bare": sample(9.0)}, "samples": {"bare": [sample(ms)]}, "faults": []}
        return Outcome(Task("engine", model, "cuda", variant="int8", **more), 1.0, result)

    found = {bar.text: bar for bar in bars.bars_of([outcome("qwen2.5-7b", 18.0), outcome("qwen2.5-32b", 24.0)])}
    assert found["qwen2.5-7b: load_weights, ms"].met and found["qwen2.5-7b: extra device memory, MiB"].met
    assert found["qwen2.5-32b: time a byte, of qwen2.5-7b's"].met is False
    cut = bars.bars_of([outcome("qwen2.5-7b", 18.0, layers=2)])
    assert cut and all(bar.met is None for bar in cut)


def test_answers_are_followed_until_a_tie():
    def engine(tokens: list[int], logprob: float = -1.0, gap: float = 3.0) -> dict:
        answer = [{"token": token, "logprob": logprob, "gap": gap} for token in tokens]
        other = [{**step, "token": step["token"] + 100} for step in answer]
        return {"answers": [[answer] * graphs.PROMPTS, [other] * graphs.PROMPTS]}

    tokens = list(range(graphs.ANSWER))
    eager = engine(tokens)
    assert graphs.differences(eager, engine(tokens, -1.01)) == []
    assert "log-probability -2.000 instead of -1.000" in graphs.differences(eager, engine(tokens, -2.0))[0]
    assert "token 7: 9 instead of 7" in graphs.differences(eager, engine([*tokens[:-1], 9]))[0]
    tie = engine(tokens, gap=0.01)
    assert graphs.differences(tie, engine([*tokens[:-1], 9])) == []
    assert "could be compared" in graphs.differences(tie, engine([9, *tokens[1:]]))[0]
    anew = {"answers": tie["answers"][-1:]}  # the same compiled code: not even a tie may turn out otherwise
    assert graphs.differences(anew, tie) == []
    assert "token 7: 109 instead of 107" in graphs.differences(anew, engine([*tokens[:-1], 9]))[0]


def test_answers_that_a_refit_left_as_they_were_are_told():
    before, after = ([[{"token": token}] for token in range(first, first + graphs.PROMPTS)] for first in (0, 100))
    assert graphs.unchanged([before, after]) == []
    (told,) = graphs.unchanged([after, after])
    assert has_line_naming(told, "16 of 16")
    (told,) = graphs.unchanged([before, [*after[:-1], before[-1]]])
    assert has_line_naming(told, "1 of 16")


def test_an_engine_answers_after_refits_as_at_first():
    answers = [[{"token": token, "logprob": -1.0, "gap": 0.0} for token in (1, 2)] for _ in range(graphs.PROMPTS)]
    assert graphs.unlike(answers, answers) == []
    other = [list(answer) for answer in answers]
    other[3][1] = {**other[3][1], "logprob": -1.0001}  # not even a bit
    (fault,) = graphs.unlike(answers, other)
    assert "prompt 3, token 1" in fault and "-1.0001" in fault


def test_timing_says_median_and_spread():
    assert summary([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0, "count": 3}
    assert [rotated([1, 2, 3], turn) for turn in (0, 1, 5)] == [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    taken = once(lambda: None, CPU)
    assert 0 <= taken.host_ms <= taken.ms and taken.extra_bytes is None
