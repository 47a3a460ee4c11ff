"""`ascend-quant`: its commands exist, and the guides show each."""

from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from command_cases import commands
from typer.testing import CliRunner

from ascend_quant.commands.app import app

ROOT = Path(__file__).parents[2]
PAGES = ("doctor", "flashrl", "install", "low_precision", "recipes", "troubleshooting")
COMMANDS = {"advise", "cleanup", "convert", "data", "demo", "export", "mismatch", "profile", "recipe", "setup", "smoke"}


def test_the_guides_show_every_command():
    shown = [words for name in PAGES for words in commands((ROOT / f"docs/{name}.md").read_text())]
    called = {words[1] for words in shown if words[0] == "ascend-quant"}
    assert called == set(typer.main.get_command(app).commands) == COMMANDS


def test_what_is_not_understood_is_told_with_status_2():
    result = CliRunner().invoke(app, ["prophile"])
    assert result.exit_code == 2 and "prophile" in result.output


def test_the_version_is_the_package_s():
    result = CliRunner().invoke(app, ["--version"])
    (line,) = result.output.splitlines()
    assert result.exit_code == 0 and line.split() == ["ascend-quant", version("ascend-quant")]


@pytest.mark.parametrize("words", [["no-recipe"], ["addition-int8", "scheem=int8"]])
def test_a_wrong_recipe_or_choice_is_one_line(words: list[str]):
    result = CliRunner().invoke(app, ["recipe", "show", *words])
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (2, "")
    assert line.count(words[0]) == 1 and words[-1].partition("=")[0] in line
