"""docs/cli.md, from the commands' own help: `python -m launch.site.reference` writes it."""

from collections.abc import Iterator
from typing import Any

import typer

from ascend_quant.cli import app as tools
from launch.cli import app as run
from launch.root import ROOT

FILE = ROOT / "docs/cli.md"
WIDTH = 110  # whatever the terminal's
HEAD = """# Commands

Made by `python -m launch.site.reference` from the commands' own help: change it there. `./run.sh help` lists what else
run.sh does (`test`, `bench`, `lint`, `setup`). In English alone, as the help is.
"""
PROGRAMS = {"ascend-quant": tools, "./run.sh": run}


def page() -> str:
    """docs/cli.md."""
    sections = [section for name, app in PROGRAMS.items() for section in _sections(name, app)]
    return "\n".join([HEAD, *sections])


def _sections(program: str, app: typer.Typer) -> Iterator[str]:
    for name, command in _commands(program, typer.main.get_command(app)):
        command.rich_markup_mode = None  # plain text, without boxes
        context = command.context_class(command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH)
        text = "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())
        yield f"## {name}\n```text\n{text}\n```\n"


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """All that are no groups and not hidden, of click or of typer's copy of it, with the words that call them."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for word, one in below.items():
        if not one.hidden:
            yield from _commands(f"{name} {word}", one)


if __name__ == "__main__":
    FILE.write_text(page())
