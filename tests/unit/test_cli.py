"""`ascend-quant`: its commands exist, and every line of the guides that calls one is understood by it."""

import shlex
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ascend_quant.cli import app

ROOT = Path(__file__).parents[2]
PAGES = ("tools", "flashrl", "low_precision", "troubleshooting")
COMMANDS = {"advise", "cleanup", "convert", "export", "mismatch", "profile", "setup", "smoke"}
GROUP = typer.main.get_command(app)


def lines() -> list[list[str]]:
    """The arguments of each line, without the comment behind it and without where its output goes."""
    text = "\n".join((ROOT / f"docs/{name}.md").read_text() for name in PAGES)
    calls = [line.partition(" > ")[0] for line in text.splitlines() if line.startswith("ascend-quant ")]
    return [shlex.split(line, comments=True)[1:] for line in calls]


def test_the_guides_show_every_command():
    assert {line[0] for line in lines()} == set(GROUP.commands) == COMMANDS


@pytest.mark.parametrize("line", lines(), ids=" ".join)
def test_a_line_of_a_guide_is_understood(line):
    name, *rest = line
    GROUP.commands[name].make_context(name, rest)  # parses and checks; runs nothing


def test_what_is_not_understood_is_told_with_status_2():
    result = CliRunner().invoke(app, ["prophile"])
    assert result.exit_code == 2 and "prophile" in result.output


def test_the_version_is_the_package_s():
    result = CliRunner().invoke(app, ["--version"])
    (line,) = result.output.splitlines()
    assert result.exit_code == 0 and line.split() == ["ascend-quant", version("ascend-quant")]
