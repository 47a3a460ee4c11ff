"""The last tables of docs/recipes.md say of recipes and stacks what these resolve to, in both languages."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import bake_file
import pytest

from launch.environment import rows as variables
from launch.recipes import load, names, paths_of, resolve
from launch.stacks import all_pins, pins

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("recipes.md", "recipes.zh.md")
CODE = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    """A line of the tables: of which recipes and stacks, what they say, and what they say nowhere."""

    setting: str
    of: tuple[str, ...]
    said: tuple[str, ...]
    absent: tuple[str, ...]


def rows(page: str) -> list[Row]:
    found = []
    for line in (DOCS / page).read_text().splitlines():
        cells = line.strip("|").split("|")
        if line.startswith("|") and len(cells) == 5 and CODE.search(cells[2]):
            here = CODE.findall(cells[3])
            of = tuple(CODE.findall(cells[2]))
            said = tuple(one for one in here if "=" in one)
            found.append(Row(cells[0].strip(), of, said, tuple(one for one in here if "=" not in one)))
    return found


def built(stack: str) -> dict[str, str]:
    """What the builds of a stack's images are told."""
    return bake_file.arguments(bake_file.of_stack(stack)[0])


@cache
def facts(name: str) -> tuple[tuple[str, str], ...]:
    """What a stack's pins and variables say, or a recipe's overrides and variables, by their keys."""
    if name in all_pins():
        stack = pins(name)
        own = {"python": stack.python, "cann": stack.cann or "", **built(name), **stack.packages}
        commits = {source: found.commit for source, found in stack.sources.items()}
        table = {row.name: row.value for row in variables(name)}
        return (*own.items(), *commits.items(), *table.items())
    name, _, stack = name.partition("@")
    recipe = load(name, changes={"stack": stack} if stack else {})
    found = resolve(recipe, paths_of(recipe, None, "/data", "/out"))
    lines = [one.lstrip("+").split("=", 1) for one in found.overrides]
    return (*((key, value.strip("'")) for key, value in lines), *found.environment.items())


def values(name: str, key: str) -> set[str]:
    """Of what ends in this key."""
    return {value for one, value in facts(name) if one == key or one.endswith(f".{key}")}


@pytest.mark.parametrize("row", rows(PAGES[0]), ids=lambda row: row.setting)
def test_what_the_page_says_is_so(row: Row):
    assert row.said or row.absent
    for name in row.of:
        for key, value in (one.split("=", 1) for one in row.said):
            assert value in values(name, key), (name, key)
            assert len(values(name, key)) == 1 or name in all_pins(), "a key's end that several have"
        for word in row.absent:
            assert not [pair for pair in facts(name) if word in "=".join(pair)], name


def test_both_languages_say_the_same():
    english, chinese = map(rows, PAGES)
    assert [row[1:] for row in english] == [row[1:] for row in chinese]
    assert len(english) > 25


def test_every_stack_and_recipe_of_the_page_is_there():
    of = {one.partition("@")[0] for row in rows(PAGES[0]) for one in row.of}
    assert of <= {*all_pins(), *names()}
