"""The benchmark of long answers: what it draws is what was measured, at the KL asked for, and right where known."""

import json
from math import exp, log, sqrt

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.long_answers import LENGTHS, app, drawn_sums, figures, measured, scaled
from launch.recipes.effective import effective_share

NORMAL = np.random.default_rng(1).normal(-5e-4, sqrt(1e-3), 200_000)


@pytest.mark.parametrize("kl", [1e-5, 1e-3, 1e-2])
def test_tokens_of_another_kl_are_still_ratios(kl: float):
    skewed = NORMAL - 0.3 * (np.random.default_rng(2).random(len(NORMAL)) < 0.01)
    factor, shift = scaled(skewed, kl)
    logs = factor * skewed + shift
    assert np.exp(logs).mean() == pytest.approx(1)
    assert -logs.mean() == pytest.approx(kl, rel=1e-6)


def test_sums_are_of_independent_tokens():
    sums = drawn_sums(NORMAL, 4000, np.random.default_rng(0))
    for n, found in list(zip(LENGTHS, sums, strict=True))[:8]:
        assert found.mean() == pytest.approx(n * NORMAL.mean(), abs=5 * sqrt(n * NORMAL.var() / 4000))
        assert found.var() == pytest.approx(n * NORMAL.var(), rel=0.15)


def test_simulated_shares_of_normal_tokens_are_the_recipes():
    """The closed form by which a recipe is refused."""
    found = figures([one for one in NORMAL.reshape(1000, 200)], 2.0, 2_000)
    rows = [row for row in found["rows"] if row["level"] == "sequence" and not row["measured"] and row["kl"] == 1e-4]
    assert [row["tokens"] for row in rows] == list(LENGTHS)
    for row in rows:
        assert row["share"] == pytest.approx(effective_share(row["tokens"], 1e-4, 2.0), abs=0.04)


def test_measured_weights_are_those_of_the_first_tokens():
    answers = [np.array([0.1, 0.2, 9.0]), np.array([-0.3, 1.0, 9.0])]
    by_level = {row.level: row for row in measured(answers, 2, 2.0, np.random.default_rng(0))}

    def share(*weights: float) -> float:
        return (sum(weights) / len(weights)) ** 2 / (sum(w * w for w in weights) / len(weights))

    assert by_level["token"].share == pytest.approx(share(exp(0.1), exp(0.2), exp(-0.3), 2.0))
    assert by_level["sequence"].share == pytest.approx(share(exp(0.3), 2.0))
    assert by_level["geometric"].share == pytest.approx(share(exp(0.15), exp(0.35)))
    assert (by_level["token"].clipped, by_level["sequence"].clipped, by_level["geometric"].clipped) == (0.25, 0.5, 0)
    assert log(2) > 0.35 and by_level["sequence"].error > 0


def test_the_command_writes_figures_and_a_picture(tmp_path):
    raw = [{"rollout": [-1.0] * 32, "train": (np.full(32, -1.0) + NORMAL[i : i + 32]).tolist()} for i in range(8)]
    given = {"model": "/m/one", "scheme": "int8", "machine": {"device": "cpu"}, "raw": {"mismatch": raw}}
    (tmp_path / "report.json").write_text(json.dumps(given))
    places = [str(tmp_path / name) for name in ("report.json", "out.json", "out.png")]
    asked = [places[0], "--out", places[1], "--png", places[2], "--sequences", "100"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["answers"] == 8 and found["measured_length"] == 32 and found["hardware"]["cpu"]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
