"""Every recipe for GPUs, with a small model of its architecture on one or two: it trains, or says what is missing."""

from pathlib import Path

import pytest
import torch
import trainings

from launch.cluster.run import NOT_FORMED
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


def refuses_exact_engines() -> bool:
    """FlashAttention 3 is Hopper's."""
    return not trainings.ON_CPU and torch.cuda.get_device_capability()[0] != 9


@pytest.mark.parametrize("name", RECIPES)
def test_two_steps_or_the_missing_modules(name, models, tmp_path):
    if load(name).is_exact and refuses_exact_engines():
        pytest.skip("an exact engine needs Hopper")
    outcome = trainings.train(name, models, tmp_path, min(2, trainings.GPUS), STEPS)
    if outcome.result is not None:
        assert outcome.result["faults"] == []
        if load(name).is_exact:
            for line in outcome.result["steps"]:
                assert line["data"]["exact/tokens"] > 0 == line["data"]["exact/unequal"]
        return
    log = next(tmp_path.glob("*.log")).read_text()
    assert f"ended with {NOT_FORMED};" in outcome.error, outcome.error
    lines = log.strip().splitlines()
    assert len(lines) <= 5 and any("megatron" in line for line in lines), log  # no other recipe lacks anything
