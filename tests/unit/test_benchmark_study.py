"""The study: which cells it trains, and what it makes of their steps."""

from math import isnan

import pytest
from typer.testing import CliRunner

from benchmarks import study
from benchmarks.report import Outcome
from benchmarks.study import Cell


def cell(arm: str, seed: int, rewards: list[float], rate: str = "1e-5") -> Outcome:
    count = len(rewards)
    metrics = dict.fromkeys(study.PANELS, [0.5] * count) | {"reward": rewards}
    if arm == "int8-uncorrected":
        metrics |= {"ess": [None] * count}
    return Outcome(Cell(arm, rate, seed, count), 1.0, metrics)


def test_arms_are_compared_with_bf16_rollouts_of_the_same_seed():
    outcomes = [cell("bf16", 0, [0.1, *[0.5] * 5]), cell("bf16", 1, [0.3, *[0.7] * 5])]
    outcomes += [cell("int8", 0, [0.0, *[0.6] * 5]), cell("int8", 1, [0.4, *[0.6] * 5])]
    plain, ours, alone = study.rows_of([*outcomes, cell("int8-uncorrected", 7, [0.0, 1.0])])
    assert (plain["first"], plain["reward"], plain["seeds"]) == (pytest.approx(0.2), pytest.approx(0.6), 2)
    assert plain["gap"] == 0 and ours["k3_kl"] == 0.5
    assert (ours["gap"], ours["gap_error"]) == (pytest.approx(0, abs=1e-12), pytest.approx(0.1))
    assert isnan(alone["gap"]) and isnan(alone["ess"])


def test_what_is_done_is_not_trained_again_and_the_rest_in_turn(monkeypatch, tmp_path):
    asked = []

    def train(choices, arm, place, on_steps, changes, seconds):
        asked.append((arm, choices.seed, changes[study.RATE]))
        (place / arm).mkdir(parents=True)

    monkeypatch.setattr(study, "train", train)
    monkeypatch.setattr(study, "start_of", lambda cell, folder: {})
    steps = [{"reward": 0.1, "k3_kl": 1e-5}, {"reward": 0.3, "k3_kl": 1e-5}]
    monkeypatch.setattr(study, "arm_report", lambda arm, metrics: {"steps": steps})
    options = ["--arms", "bf16,int8", "--rates", "1e-4", "--seeds", "0", "--folder", str(tmp_path), "--steps", "2"]
    for _ in range(2):
        run = CliRunner().invoke(study.app, options)
        assert run.exit_code == 0, run.output
    assert asked == [("bf16", 0, 1e-4), ("int8", 0, 1e-4)]


@pytest.mark.parametrize("learnt", [50, 1210, 10**6])
def test_the_warm_up_falls_once_the_likeliest_answers_are_right_at_every_seed(monkeypatch, learnt: int):
    plan = study.STUDY.warm_up
    monkeypatch.setattr(study, "likeliest", lambda update: float(update >= learnt))
    fall_from = min(-(-learnt // 50) * 50, 2500)
    rises, stays = [2e-3 * count / 50 for count in range(1, 51)], [2e-3] * (fall_from - 50)
    falls = [2e-3 * (1 - 0.95 * count / 200) for count in range(200)]
    for _ in range(2):
        made = [plan.rate(update, update) for update in range(fall_from + 201)]
        assert made[-1] is None and made[:-1] == pytest.approx(rises + stays + falls)
