"""Bars that speak: what a log has of them, and what a terminal has."""

import io
import re
import time
from collections.abc import Callable

import pytest
from rich.console import Console
from rich.progress import Progress

from ascend_quant.terminal import progress
from ascend_quant.terminal.progress import Bars, waiting


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.02)
    monkeypatch.setattr(progress, "MOST_SECONDS", 0.02)


def until(said: Callable[[], str], pattern: str) -> None:
    end = time.monotonic() + 30
    while not re.search(pattern, said()) and time.monotonic() < end:
        time.sleep(0.01)
    assert re.search(pattern, said()), said()


@pytest.mark.parametrize("transient", [False, True])
def test_a_log_has_lines_of_what_is_under_way(transient: bool):
    log = io.StringIO()
    with Bars(console=Console(file=log), transient=transient) as bars:
        one, two = bars.add_task("int8: [verl] starts", total=4), bars.add_task("convert", total=None)
        bars.update(one, completed=1)
        until(log.getvalue, r"(?m)^int8: \[verl\] starts: 25% after \d+ s$")
        until(log.getvalue, r"(?m)^convert: after \d+ s$")
        bars.update(one, completed=4)
        bars.update(two, total=2, completed=2)
    assert ("starts: 100%" in log.getvalue(), "convert: 100%" in log.getvalue()) == (not transient, not transient)
    said = log.getvalue()
    assert said.count("starts: 100%") <= 1
    time.sleep(0.1)
    assert log.getvalue() == said, "silent when it is over"


def test_stopping_early_and_again_is_silent_too():
    log = io.StringIO()
    bars = Bars(console=Console(file=log))
    with bars:
        bars.add_task("one", total=4)
        until(log.getvalue, "one")
        bars.stop()
    bars.stop()
    assert "100%" not in log.getvalue()


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_a_terminal_has_richs_bars_alone(terminal: str):
    """One that cannot move its cursor has lines."""
    log = io.StringIO()
    with Bars(console=Console(file=log, force_terminal=True, _environ={"TERM": terminal})) as bars:
        bars.update(bars.add_task("one", total=2), completed=2)
    assert ("after" in log.getvalue()) == (terminal == "dumb") == bars.disable and isinstance(bars, Progress)


def test_what_is_waited_for_goes_to_stderr(capsys: pytest.CaptureFixture):
    said = ""

    def err() -> str:
        nonlocal said
        said += capsys.readouterr().err
        return said

    with waiting("asking 3 hosts"):
        until(err, "asking 3 hosts: after")
    assert capsys.readouterr().out == ""
