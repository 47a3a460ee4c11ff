"""`ascend-quant cleanup`: take out the lines of `usercustomize.py` by which FlashRL patches vLLM at every start."""

import os
from difflib import unified_diff
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.exits import FAILED, WRONG_USE, fail
from ascend_quant.whole_file import write_whole


def cleanup(
    path: Annotated[
        Path | None, typer.Option("--path", "-p", help="The file.  [default: this environment's usercustomize.py]")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove FlashRL's patch: its lines in usercustomize.py, or the whole file if it has no others.

    Configs stay: they work here.

    Exit status: 0; 1 if something still imports flash_rl; 2 for wrong use, or a file that cannot be read or changed.
    """
    from ascend_quant.flashrl.usercustomize import clean, default_path

    file = path or default_path()
    if path is None and not file.exists():
        typer.echo(f"there is no {file}: nothing to do")
        return
    before = read(file)
    cleaned = clean(before)
    for number, line in cleaned.left:
        typer.echo(f"{file}:{number} imports flash_rl, but is not FlashRL's line: edit it by hand: {line}", err=True)
    if cleaned.removed:
        show(file, before, cleaned.text)
        if not yes:
            typer.confirm("Remove these lines?", abort=True)
        write(file, cleaned.text)
    else:
        typer.echo(f"{file} has no line of FlashRL's: nothing to do")
    if cleaned.left:
        raise typer.Exit(FAILED)


def read(file: Path) -> str:
    """The text, with its line ends; or the end of the command."""
    try:
        return file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file} cannot be read: {error}", WRONG_USE)


def show(file: Path, before: str, after: str) -> None:
    """The change as a diff."""
    target = str(file) if after.strip() else "/dev/null"
    lines = unified_diff(before.splitlines(), after.splitlines(), str(file), target, lineterm="")
    typer.echo("\n".join(lines))


def write(file: Path, text: str) -> None:
    """Write what is left; a file of which nothing is left goes, as FlashRL made it, and with it the link to it."""
    try:
        if text.strip():
            write_whole(file, text)
            typer.echo(f"cleaned {file}")
        else:
            links = [file] if file.is_symlink() else []
            for one in (Path(os.path.realpath(file)), *links):
                one.unlink()
                typer.echo(f"removed {one}: it held nothing else")
    except OSError as error:
        fail(f"{file} cannot be changed: {error}", WRONG_USE)
