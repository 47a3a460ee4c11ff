"""The tables of docs/low_precision.md and its Chinese version are the recipes, and their commands are understood."""

import shlex
from pathlib import Path

import pytest
import typer

from ascend_quant.cli import app as commands
from launch.cli import app as run
from launch.recipes import command

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("low_precision.md", "low_precision.zh.md")


@pytest.mark.parametrize("page", PAGES)
def test_the_table_is_the_recipes(page: str):
    names = {row[0] for row in command.rows()}
    lines = [line.strip("| ").split(" | ") for line in (DOCS / page).read_text().splitlines() if line.startswith("| ")]
    assert [tuple(line) for line in lines if line[0] in names] == command.rows()


def called(page: str) -> list[list[str]]:
    """Every line of a page that calls one of our commands."""
    lines = [line.split("|  bash")[0].split(" | bash")[0] for line in (DOCS / page).read_text().splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(("ascend-quant ", "./run.sh "))]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_are_understood(page: str):
    assert len(called(page)) >= 8
    for program, *line in called(page):
        group = typer.main.get_command(commands if program == "ascend-quant" else run)
        while isinstance(group, typer.core.TyperGroup):
            name, *line = line
            group = group.commands[name]
        group.make_context(name, line)  # parses and checks; runs nothing


def test_both_languages_show_the_same_commands():
    assert called(PAGES[0]) == called(PAGES[1])
