"""The benchmark of syncs to engines apart: what it trains, and what it makes of verl's log."""

import json
from dataclasses import replace

import pytest
from naming import has_line_naming
from typer.testing import CliRunner

from benchmarks import apart
from benchmarks.tasks import Outcome

ARM = apart.Apart("qwen2.5-7b-int8-gsm8k-h100", "qwen2.5-7b", "int8", 12, 16, 4, 4, send="delta", engines=1)
GIB = 1 << 30


def outcome(send: str, seconds: list[float], sent: int, proved: int = 339, layers: int | None = None) -> Outcome:
    steps = [
        {
            "step": number,
            "data": {
                apart.TIMED: took,
                apart.SENT: sent,
                "refit/proved": proved,
                "refit/tensors": 339,
                "refit/changed": 0.01,
                "refit/replica0/proved": 1,
            },
        }
        for number, took in enumerate(seconds, 1)
    ]
    return Outcome(replace(ARM, send=send, layers=layers), 60.0, {"steps": steps, "faults": []})


def test_some_devices_train_and_the_others_generate():
    recipe = ARM.loaded()
    assert (recipe.devices_per_node, recipe.rollout.apart, recipe.rollout.send) == (4, 1, "delta")
    assert recipe.training.sequence_parallel <= 3


def test_the_first_step_is_left_out_and_ratios_are_of_bf16s(tmp_path, capsys):
    outcomes = [outcome("bf16", [9, 4, 2, 3], 8 * GIB), outcome("delta", [9, 1, 0.5, 0.3], GIB)]
    apart.write_json(tmp_path / "run.json", "cpu", outcomes)
    content = json.loads((tmp_path / "run.json").read_text())
    assert [(row["send"], row["syncs"], row["median_s"]) for row in content["rows"]] == [
        ("bf16", 3, 3),
        ("delta", 3, 0.5),
    ]
    assert [bar["value"] for bar in content["bars"]] == [pytest.approx(1 / 6), pytest.approx(1 / 8)]
    assert content["faults"] == [] and "refit/replica0/proved" not in content["rows"][0]["logged"]
    apart.show(outcomes)
    assert has_line_naming(capsys.readouterr().out, "delta", "0.500")


@pytest.mark.parametrize(
    ("layers", "here", "met"), [(None, True, [True, False]), (None, False, [None, None]), (2, True, [None, None])]
)
def test_bars_are_judged_of_the_whole_7b_on_gpus(layers, here, met):
    rows = apart.rows_of([outcome("bf16", [9, 4, 2], 8 * GIB, layers=layers), outcome("delta", [9, 0.4, 0.4], GIB)])
    assert [bar.met for bar in apart.bars_of(rows, here)] == met


def test_a_sync_that_is_not_proved_is_a_fault():
    first, *others = apart.faults_of([outcome("int8", [1, 1], GIB, proved=338), Outcome(ARM, 9.0, None, "gone")])
    assert first == "gone" and len(others) == 2
    assert all(has_line_naming(fault, "338", "339") for fault in others)


@pytest.mark.parametrize("options", [["--arms", "fp8x"], ["--gpus", "1"], ["--engines", "2"], ["--layers", "99"]])
def test_wrong_use_is_said_before_anything_starts(options, tmp_path):
    found = CliRunner().invoke(apart.app, ["--gpus", "2", "--folder", str(tmp_path), *options])
    assert found.exit_code == 2 and not list(tmp_path.iterdir())
