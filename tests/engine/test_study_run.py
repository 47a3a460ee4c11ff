"""One cell of the study, as its user trains it: verl and vLLM, from the command line."""

import json
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from launch.cli import app
from launch.study import grid

STEPS = 3
CELL = ["--arms", "int8", "--rates", "1e-3", "--seeds", "3", "--steps", str(STEPS)]


def study(out: Path, *more: str) -> dict:
    """The report of a study in this folder."""
    ended = CliRunner().invoke(app, ["study", "--out", str(out), "--json", *CELL, *more], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


def test_a_cell_is_trained_and_kept(tmp_path, monkeypatch):
    setup = grid.SETUPS["cpu"]
    warm_up = replace(setup.warm_up, longest=0, fall=5, band=(0, 1))  # it learns nothing, and is rewarded for nothing
    monkeypatch.setitem(grid.SETUPS, "cpu", replace(setup, warm_up=warm_up))
    monkeypatch.chdir(tmp_path)
    (cell,) = study(tmp_path / "out")["cells"]
    assert (cell["arm"], float(cell["rate"]), cell["seed"]) == ("int8", 1e-3, 3)
    metrics = cell["metrics"]
    assert {len(values) for values in metrics.values()} == {STEPS}
    assert all(0 < value < 0.1 for value in metrics["k3_kl"]), "the engine's codes are not the trainer's weights"
    monkeypatch.setattr("launch.study.cells.Training", None)
    assert study(tmp_path / "out")["cells"] == [cell], "it was trained again"
