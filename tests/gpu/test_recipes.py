"""Every recipe for GPUs, with a small model of its architecture on one or two: it trains, or says at once why not."""

from pathlib import Path

import pytest
import trainings

from launch.commands.ending import WRONG_USE
from launch.recipes import load, names

RECIPES = [name for name in names() if load(name).stack.startswith("cuda")]
STEPS = 2


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """The folder of all small models."""
    folder = tmp_path_factory.mktemp("models")
    for architecture in trainings.ARCHITECTURES:
        trainings.write_model(architecture, folder / architecture)
    return folder


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("name", RECIPES)
def test_two_steps_or_one_line(name, gpus, models, tmp_path):
    if gpus > trainings.GPUS:
        pytest.skip(f"needs {gpus} GPUs")
    outcome = trainings.train(name, models, tmp_path, gpus, STEPS)
    if outcome.result is not None:
        assert outcome.result["faults"] == []
        return
    log = next(tmp_path.glob("*.log")).read_text()
    assert f"ended with {WRONG_USE};" in outcome.error, outcome.error
    assert len(log.strip().splitlines()) == 1 and name in log, log
