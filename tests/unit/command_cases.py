"""Commands that a text shows, read as the programs would read them; nothing is run."""

from collections.abc import Sequence
from importlib.util import find_spec

import typer

from launch.commands import app


def understood(words: Sequence[str]) -> None:
    """Parses a command of run.sh's Python, or looks for the module that `python -m` starts.

    Raises:
        KeyError: there is no such command.
        click.UsageError: it has no such option, or takes no such argument.
    """
    if words[:2] == ["python", "-m"]:
        assert find_spec(words[2]), words
        return
    group, name = typer.main.get_command(app), ""
    while isinstance(group, typer.core.TyperGroup):
        name, *words = words
        group = group.commands[name]
    group.make_context(name, list(words))
