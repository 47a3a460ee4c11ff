"""The recipe tables of the documents are the recipes, in both languages, and their commands are understood."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from ascend_quant.cli import app as commands
from launch.cli import app as run
from launch.recipes import command

DOCS = Path(__file__).parents[2] / "docs"
LOW_PRECISION = ("low_precision.md", "low_precision.zh.md")
RECIPES = ("recipes.md", "recipes.zh.md")
PAGES = (*LOW_PRECISION, *RECIPES)


def in_few_bits(row: tuple[str, ...]) -> bool:
    """Whether docs/low_precision.md has the recipe, not docs/recipes.md."""
    return row[1].startswith(("fp8", "int4"))


def table(page: str) -> list[tuple[str, ...]]:
    """Every line of a page's tables that begins with a recipe's name, and has as many cells as `recipe list`."""
    names = {row[0] for row in command.rows()}
    lines = [line.strip("| ").split(" | ") for line in (DOCS / page).read_text().splitlines() if line.startswith("| ")]
    return [tuple(line) for line in lines if line[0] in names and len(line) == len(command.COLUMNS)]


def in_chinese(cell: str) -> str:
    """A cell of `recipe list` as the Chinese pages have it."""
    for english, chinese in (
        (r" of (?=\d+ GiB)", "，各 "),
        (", QAT", "，QAT"),
        (", KV ", "，KV "),
        ("FP8 blockwise", "FP8，按块"),
    ):
        cell = re.sub(english, chinese, cell)
    return cell


@pytest.mark.parametrize("page", PAGES)
def test_the_table_is_the_recipes(page: str):
    wanted = [row for row in command.rows() if in_few_bits(row) == (page in LOW_PRECISION)]
    assert table(page) == ([tuple(map(in_chinese, row)) for row in wanted] if ".zh." in page else wanted)


def called(page: str) -> list[list[str]]:
    """Every line of a page that calls one of our commands."""
    lines = [line.split("|  bash")[0].split(" | bash")[0] for line in (DOCS / page).read_text().splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(("ascend-quant ", "./run.sh "))]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_are_understood(page: str):
    assert len(called(page)) >= (8 if page in LOW_PRECISION else 4)
    for program, *line in called(page):
        group = typer.main.get_command(commands if program == "ascend-quant" else run)
        while isinstance(group, typer.core.TyperGroup):
            name, *line = line
            group = group.commands[name]
        group.make_context(name, line)  # parses and checks; runs nothing
