"""docs/troubleshooting.md and its twin name every exit status, and every error class that a user may meet."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from ascend_quant.terminal import exits
from launch import ROOT

PAGES = [ROOT / "docs" / name for name in ("troubleshooting.md", "troubleshooting.zh.md")]
# What is caught inside: no user sees the name.
INSIDE = {"Stopped", "NotGathered", "HostSilent"}
of_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def rows(page: Path) -> list[list[str]]:
    lines = re.findall(r"^\| (.*?) \|$", page.read_text(), re.M)
    return [line.split(" | ") for line in lines]


@cache
def errors() -> set[tuple[str, str]]:
    """(class, file) of all exceptions that are no module's own affair."""
    bases = {
        (node.name, str(file.relative_to(ROOT))): {ast.unparse(base) for base in node.bases}
        for folder in ("ascend_quant", "launch")
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    known = {"Exception", "RuntimeError", "ValueError", "LookupError", "OSError", "ImportError"}
    while more := {name for (name, _), of in bases.items() if of & known} - known:
        known |= more
    return {(name, file) for (name, file), of in bases.items() if of & known and not name.startswith("_")}


@of_each_page
def test_exit_statuses(page: Path):
    named = {row[1].strip("`"): int(row[0]) for row in rows(page) if re.fullmatch(r"`[A-Z_]+`", row[1])}
    assert named == {name: value for name, value in vars(exits).items() if isinstance(value, int)}


@of_each_page
def test_error_classes(page: Path):
    named = {
        (row[0].strip("`"), file)
        for row in rows(page)
        for file in re.findall(r"`([\w/]+\.py)`", row[1])
        if re.fullmatch(r"`[A-Z]\w+`", row[0])
    }
    assert named == {(name, file) for name, file in errors() if name not in INSIDE}
