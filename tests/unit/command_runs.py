"""A command of typer's, run in this process as from a command line; and what it printed, without frames and colours."""

import re
from collections.abc import Callable

import typer
from typer.testing import CliRunner, Result


def runner(command: Callable) -> Callable[..., Result]:
    """Runs it with some words."""
    app = typer.Typer()
    app.command()(command)
    return lambda *words: CliRunner().invoke(app, [*map(str, words)], terminal_width=300)


def plain(text: str) -> str:
    """One line."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text).split())
