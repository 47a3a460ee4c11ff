"""`manifest`, inside an image: what it is made of."""

import os
from typing import Annotated

import typer

from launch.commands.ending import WRONG_USE, fail


def manifest(as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False) -> None:
    """What this image is made of: packages, commits, CANN, CUDA, chip, kernels. For `docker run IMAGE manifest`."""
    from launch.errors import LaunchError
    from launch.images.inside import manifest as look

    try:
        found = look(os.environ)
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    typer.echo(found.as_json() if as_json else "\n".join(found.lines()), nl=not as_json)
