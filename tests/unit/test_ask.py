"""Other programs: the output of one that is asked, or why there is none."""

import os
from pathlib import Path

import psutil
import pytest
from naming import has_line_naming

from ascend_quant.processes.tree import still_running
from launch.system.processes import ask


@pytest.mark.parametrize(
    ("script", "seconds", "said"),
    [
        ("sleep 60", 0.2, "did not answer"),
        ("sleep 60 & exit 0", 0.2, "did not answer"),  # what it started holds its output
    ],
)
def test_a_program_without_an_end_is_ended(tmp_path: Path, script: str, seconds: float, said: str):
    answer = ask(["bash", "-c", f"echo $$ > {tmp_path}/group; {script}"], seconds)
    assert (answer.output, said in answer.problem) == ("", True)
    group = int((tmp_path / "group").read_text())
    started = [one for one in psutil.process_iter() if group_of(one.pid) == group]
    assert not still_running(started, 20)


def group_of(pid: int) -> int | None:
    """The process group of any process of this machine; None when it has just ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_why_a_program_gave_no_answer():
    text, problem = ask(["bash", "-c", r"echo half; printf 'brok\377n' >&2; exit 3"])
    assert text == "half\n" and has_line_naming(problem, "bash -c", "with 3: brok\ufffdn")
    assert has_line_naming(ask(["no-such-program"]).problem, "no-such-program", "PATH")
