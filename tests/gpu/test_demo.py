"""Three steps of the demo on a GPU with two arms: it starts, follows its weights and reports.

The warm-up is shortened, so the rewards say nothing; what RL learns is the demo's own run to show.
"""

import json
from dataclasses import replace
from math import isfinite

import pytest
import torch

pytest.importorskip("verl", reason="the demo needs verl")

from rich.console import Console

from launch.demo.recipe import SETUPS
from launch.demo.run import choices, on_device, run_demo

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
ARMS = ("int8", "int8-uncorrected")
STEPS = 3


@pytest.fixture
def short(monkeypatch):
    setup = SETUPS["cuda"]
    warm_up = replace(setup.warm_up, longest=0, fall=100, band=(0, 1))
    monkeypatch.setitem(SETUPS, "cuda", replace(setup, warm_up=warm_up))


def test_three_steps_of_two_arms(short, tmp_path):
    chosen, left_out = on_device(choices(",".join(ARMS), False, STEPS, "token", 0, "qwen2", "cuda"), asked=True)
    assert left_out is None
    run_demo(chosen, tmp_path, Console(quiet=True))
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["device"] == "cuda" and report["hardware"]["gpu"] == torch.cuda.get_device_name()
    assert [arm["name"] for arm in report["arms"]] == list(ARMS)
    layers = SETUPS["cuda"].shape["num_hidden_layers"]
    for arm in report["arms"]:
        assert len(arm["steps"]) == STEPS and arm["start_seconds"] > 0
        assert all(isfinite(value) for step in arm["steps"] for value in step.values())
        assert ("ess" in arm["steps"][0]) == arm["corrected"]
        assert {receipt["tensors"] for receipt in arm["receipts"]} == {12 * layers + 3}
        assert len({receipt["digest"] for receipt in arm["receipts"]}) == STEPS, "every step brings new weights"
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
