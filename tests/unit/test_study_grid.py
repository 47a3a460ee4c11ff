"""What a study trains: its grid from the options, and what verl is told of a cell."""

from itertools import product

import pytest
import torch

from launch.demo.run import OptionError
from launch.demo.tasks import LINE
from launch.recipes.files import FOLDER, read
from launch.study.grid import ARMS, RATE, RATES, SEEDS, SETUPS, Cell, grid, on_device, settings


def test_by_default_it_is_every_arm_at_every_rate_from_every_seed():
    chosen = grid("cpu", None, None, None, None)
    assert {(cell.arm, cell.rate, cell.seed) for cell in chosen.cells()} == set(product(ARMS, RATES, SEEDS))
    assert len({cell.name for cell in chosen.cells()}) == len(chosen.cells())
    assert len(SEEDS) >= 2 and chosen.steps == read(FOLDER / "study.yaml")["steps"]


def test_arms_that_are_compared_are_neighbours():
    cells = grid("cpu", "bf16,int8", "1e-5,1e-6", "3,4", 2).cells()
    assert [cell.arm for cell in cells] == ["bf16", "int8"] * 4
    assert [(cell.seed, cell.rate) for cell in cells[::2]] == [(3, "1e-5"), (3, "1e-6"), (4, "1e-5"), (4, "1e-6")]


@pytest.mark.parametrize(
    ("options", "value"),
    [
        (("npu", None, None, None, None), "npu"),
        (("cpu", "int7", None, None, None), "int7"),
        (("cpu", "int8,int8", None, None, None), "int8"),
        (("cpu", None, "0", None, None), "0"),
        (("cpu", None, "fast", None, None), "fast"),
        (("cpu", None, "nan", None, None), "nan"),
        (("cpu", None, "1e-4,0.0001", None, None), "1e-4,0.0001"),
        (("cpu", None, "1_0e-5", None, None), "1_0e-5"),
        (("cpu", None, "１e-4", None, None), "１e-4"),
        (("cpu", None, None, "0,00", None), "0,00"),
        (("cpu", None, None, "٣", None), "٣"),
        (("cpu", None, None, "-1", None), "-1"),
        (("cpu", None, None, "1.5", None), "1.5"),
        *((("cpu", None, None, seed, None), seed[:9]) for seed in ("9" * 5000, str(2**32), "٣")),
        (("cpu", None, None, None, 1), "1"),
    ],
)
def test_what_cannot_be_is_refused_by_its_value(options, value):
    with pytest.raises(OptionError, match=value):
        grid(*options)


@pytest.mark.parametrize(("capability", "left"), [((8, 0), [arm for arm in ARMS if arm != "fp8"]), ((9, 0), [*ARMS])])
def test_fp8_needs_fp8_units(monkeypatch, capability, left):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    wanted = grid("cuda", None, None, None, None)
    able, line = on_device(wanted, asked=False)
    assert [*able.arms] == left and (line is None) == (left == [*ARMS])
    if line:
        with pytest.raises(OptionError, match="fp8"):
            on_device(wanted, asked=True)


def test_verl_gets_the_rate():
    assert settings(Cell("bf16", "5e-8", 0)) == {RATE: 5e-8}
    chosen = grid("cpu", None, None, None, 5)
    for cell in chosen.cells():
        choices = chosen.choices(cell)
        assert (choices.seed, choices.steps, choices.setup) == (cell.seed, 5, SETUPS["cpu"])


@pytest.mark.parametrize("device", SETUPS)
def test_prompts_and_answers_fit_and_answers_are_long(device):
    setup = SETUPS[device]
    verl, task = read(FOLDER / f"{setup.recipe}.yaml")["verl"], setup.task
    answer = task.longest * LINE  # its end token in place of the last blank
    assert verl["data"]["max_response_length"] >= answer
    assert verl["data"]["max_prompt_length"] >= task.width - answer
    together = verl["data"]["max_prompt_length"] + verl["data"]["max_response_length"]
    assert together <= verl["actor_rollout_ref"]["rollout"]["max_model_len"]
    assert task.width <= setup.shape["max_position_embeddings"]
    assert task.shortest * LINE >= 50, "not an answer of a few tokens"
