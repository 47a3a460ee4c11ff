"""The trainings of a study, with a stand-in for verl: what is done is kept, and only what is left is trained."""

import json
from io import StringIO
from pathlib import Path

import pandas
import pytest
from rich.console import Console

from launch.demo import DemoError
from launch.demo.metrics import FIELDS, SPEED_FIELDS, WEIGHT_FIELDS
from launch.demo.run import OptionError, progress
from launch.demo.training import Watched
from launch.study import cells
from launch.study.cells import check_folder, records, train_all
from launch.study.grid import RATE, grid

STEPS = 3


class StandIn:
    """A training that is done after a few looks; it logs its learning rate as its reward."""

    alive = most = 0
    trained: list[str]
    fails = ""

    def __init__(self, choices, arm: str, out: Path, changes):
        assert Path(changes["actor_rollout_ref.model.path"]).is_dir() and Path(changes["data.train_files"]).is_file()
        self.name, self.folder, self.looks, self.watched = out.name, out / arm, 0, None
        assert len(pandas.read_parquet(changes["data.train_files"])) == choices.prompts
        self.rate = changes[RATE]
        StandIn.alive += 1
        StandIn.most = max(StandIn.most, StandIn.alive)

    def look(self) -> int:
        self.looks += 1
        if self.name == StandIn.fails:
            raise DemoError("it failed")
        if self.looks == 3:
            self.folder.mkdir(parents=True)
            metrics = {name: self.rate for name in {**FIELDS, **WEIGHT_FIELDS, **SPEED_FIELDS}.values()}
            lines = [json.dumps({"step": step, "data": metrics}) for step in range(1, STEPS + 1)]
            (self.folder / "metrics.jsonl").write_text("\n".join([*lines, ""]))
            self.watched = Watched(1 << 30, 1.0)
            StandIn.trained.append(self.name)
        return self.looks

    def end(self) -> None:
        if self.looks >= 0:
            StandIn.alive -= 1
        self.looks = -1


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Trains a grid in one folder; returns the names of the arms that were trained now."""
    starts: list[int] = []

    def start(choices, folder: Path, on_update) -> float:
        starts.append(choices.seed)
        folder.mkdir(parents=True)
        return 0.4

    monkeypatch.setattr(cells, "Training", StandIn)
    monkeypatch.setattr(cells, "POLL_SECONDS", 0)
    monkeypatch.setattr("launch.demo.warmup.make_start", start)

    def trained(chosen, jobs: int = 1, fails: str = "") -> list[str]:
        StandIn.trained, StandIn.most, StandIn.alive, StandIn.fails = [], 0, 0, fails
        with progress(Console(file=StringIO())) as bars:
            train_all(chosen, tmp_path, jobs, bars)
        return StandIn.trained

    trained.starts = starts
    return trained


def test_each_cell_has_a_record_of_its_own_training(train, tmp_path):
    chosen = grid("cpu", "bf16,int8,int8-qat", "1e-4,1e-6", "0,7", STEPS)
    assert len(train(chosen)) == 12
    assert train.starts == [0, 7] and StandIn.most == 1 and StandIn.alive == 0
    found = records(chosen, tmp_path)
    assert [(one["seed"], one["rate"], one["arm"]) for one in found] == [
        (cell.seed, cell.rate, cell.arm) for cell in chosen.cells()
    ]
    for one in found:
        assert one["metrics"]["reward"] == [float(one["rate"])] * STEPS


def test_a_study_that_failed_goes_on_where_it_was(train, tmp_path):
    chosen = grid("cpu", "bf16,int8,fp8", "1e-4", "0", STEPS)
    with pytest.raises(DemoError):
        train(chosen, fails="int8")
    assert [one["arm"] for one in records(chosen, tmp_path)] == ["bf16"] and StandIn.alive == 0
    assert train(chosen) == ["int8", "fp8"]
    assert train(chosen) == [] and train.starts == [0]
    assert train(grid("cpu", "bf16,int8", "1e-4,1e-5", "0", STEPS)) == ["bf16", "int8"]


def test_before_the_first_record_the_steps_may_be_others(train):
    with pytest.raises(DemoError):
        train(grid("cpu", "int8", "1e-4", "0", STEPS), fails="int8")
    assert train(grid("cpu", "int8", "1e-4", "0", 2 * STEPS)) == ["int8"]


def test_so_many_are_trained_at_once(train):
    train(grid("cpu", "bf16,int8,fp8,int8-qat", "1e-4", "0", STEPS), jobs=3)
    assert StandIn.most == 3 and StandIn.alive == 0


def test_a_folder_holds_one_study(train, tmp_path):
    chosen = grid("cpu", "bf16", "1e-4", "0", STEPS)
    check_folder(chosen, tmp_path)
    train(chosen)
    check_folder(chosen, tmp_path)
    with pytest.raises(OptionError, match="--steps 9"):
        check_folder(grid("cpu", "bf16", "1e-4", "0", 9), tmp_path)
    with pytest.raises(OptionError, match="--device cuda"):
        check_folder(grid("cuda", "bf16", "1e-4", "0", STEPS), tmp_path)
    (tmp_path / "cells" / "half.json").write_text('{"arm')
    with pytest.raises(OptionError, match=r"half\.json"):
        check_folder(chosen, tmp_path)
