"""One arm of the demo starts while another trains: Pythons that stand in for verl write down when they did what."""

import json
import sys
import time
from dataclasses import replace
from io import StringIO
from itertools import pairwise

import pytest
from rich.console import Console

from launch.demo import DemoError, recipe, run, training

ARMS = ("bf16", "int8", "fp8")
STEPS = 3
STAND_IN = """
import fcntl, json, os, sys, time
events = open({events!r}, "a", buffering=1)
arm = os.path.basename(os.getcwd())
events.write(json.dumps([time.monotonic(), arm, "starts"]) + chr(10))
time.sleep(0.2)
if arm == {fails!r}:
    sys.exit(3)
path = os.environ.get("ASCEND_QUANT_TURN")
begun = time.monotonic()
if path:
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
waited = time.monotonic() - begun
events.write(json.dumps([time.monotonic(), arm, "trains"]) + chr(10))
for step in range(1, {steps} + 1):
    time.sleep(0.5)
    data = {{"timing_s/step": 0.5}}
    if step == 1:
        data["start_up/turn"] = waited
    with open(os.environ["VERL_FILE_LOGGER_PATH"], "a") as file:
        file.write(json.dumps({{"step": step, "data": data}}) + chr(10))
    until = time.monotonic() + {patience}  # on a busy machine the next one's Python takes seconds to start
    while step == 1 and time.monotonic() < until and open({events!r}).read().count("starts") < {started}[arm]:
        time.sleep(0.05)
events.write(json.dumps([time.monotonic(), arm, "ends"]) + chr(10))
time.sleep({after})
"""


@pytest.fixture
def arms(tmp_path, monkeypatch):
    """Trains the arms; returns what was watched, and when each started, trained and ended."""

    def train(early: bool, fails: str = "", after: float = 0) -> tuple[dict, dict]:
        events, script, python = tmp_path / "events", tmp_path / "verl.py", tmp_path / "python"
        started = {arm: min(place + 2, len(ARMS)) for place, arm in enumerate(ARMS)}  # with the one behind it
        said = {"steps": STEPS, "fails": fails, "after": after, "patience": 20 if early else 0, "started": started}
        script.write_text(STAND_IN.format(events=str(events), **said))
        real = sys.executable
        python.write_text(f'#!/bin/sh\ncase "$2" in *main_ppo) exec {real} {script};; esac\nexec {real} "$@"\n')
        python.chmod(0o755)
        monkeypatch.setattr(training.sys, "executable", str(python))
        monkeypatch.setattr(training, "POLL_SECONDS", 0.05)
        monkeypatch.setattr(run, "POLL_SECONDS", 0.05)
        setup = replace(recipe.SETUPS["cpu"], cores_to_start_early=0 if early else float("inf"))
        monkeypatch.setitem(recipe.SETUPS, "cpu", setup)
        choices = recipe.Choices(ARMS, STEPS, "token", 0, "qwen2")
        try:
            with run.progress(Console(file=StringIO())) as bars:
                watched = run.run_arms(choices, tmp_path / "out", bars)
        finally:
            lines = [json.loads(line) for line in events.read_text().splitlines()]
            self.moments = {(arm, what): moment for moment, arm, what in lines}
        return watched, self.moments

    self = train
    return train


def test_an_arm_starts_in_the_one_before_it_and_trains_behind_it(arms):
    watched, at = arms(early=True)
    assert list(watched) == list(ARMS)
    for first, second in pairwise(ARMS):
        assert at[first, "trains"] < at[second, "starts"] < at[first, "ends"] < at[second, "trains"]
    assert at["bf16", "ends"] < at["fp8", "starts"], "never three at once"
    for arm in ARMS:
        waited = at[arm, "trains"] - at[arm, "starts"]
        assert 0.1 < watched[arm].start_seconds < max(1.5, waited), "its waiting is none of its start"


def test_without_spare_cores_one_follows_the_other(arms):
    _, at = arms(early=False)
    for first, second in pairwise(ARMS):
        assert at[first, "ends"] < at[second, "starts"]


def test_the_next_arm_trains_once_the_processes_before_it_have_ended(arms):
    _, at = arms(early=True, after=1)
    assert at["int8", "trains"] > at["bf16", "ends"] + 0.9


@pytest.mark.parametrize("fails", ["bf16", "int8"])
def test_an_arm_that_fails_ends_all(arms, fails):
    begun = time.monotonic()
    with pytest.raises(DemoError, match="code 3 after 0 of 3 steps"):
        arms(early=True, fails=fails, after=60)
    assert time.monotonic() - begun < 30
    assert ("fp8", "starts") not in arms.moments
