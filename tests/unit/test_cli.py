"""`ascend-quant`: its commands exist, and every line of the READMEs that calls one is understood by it."""

import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ascend_quant.cli import app

ROOT = Path(__file__).parents[2]
COMMANDS = {"advise", "check-engine", "cleanup", "convert", "export", "kernels", "mismatch", "profile", "setup", "tune"}
GROUP = typer.main.get_command(app)


def lines() -> list[list[str]]:
    """The arguments of each line, without the comment behind it."""
    text = (ROOT / "README.md").read_text()
    return [shlex.split(line, comments=True)[1:] for line in text.splitlines() if line.startswith("ascend-quant ")]


def test_the_readme_shows_every_command():
    assert {line[0] for line in lines()} == set(GROUP.commands) == COMMANDS


@pytest.mark.parametrize("line", lines(), ids=" ".join)
def test_a_line_of_the_readme_is_understood(line):
    name, *rest = line
    GROUP.commands[name].make_context(name, rest)  # parses and checks; runs nothing


def test_what_is_not_understood_is_told_with_status_2():
    result = CliRunner().invoke(app, ["prophile"])
    assert result.exit_code == 2 and "prophile" in result.output
