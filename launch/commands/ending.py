"""How a command ends with a message in place of a traceback."""

from typing import NoReturn

import typer

FAILED, WRONG_USE = 1, 2


def fail(message: str, code: int) -> NoReturn:
    """End with a message on stderr."""
    typer.echo(message, err=True)
    raise typer.Exit(code)
