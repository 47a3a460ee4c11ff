"""`ascend-quant cleanup`: take out the lines of `usercustomize.py` by which FlashRL patches vLLM at every start."""

from difflib import unified_diff
from pathlib import Path
from typing import Annotated

import typer


def cleanup(
    path: Annotated[
        Path | None, typer.Option("--path", "-p", help="The file.  [default: this environment's usercustomize.py]")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove what FlashRL left in this environment: its lines of usercustomize.py, or the file if that is all.

    Configs stay: they work here. Ends with 1 if something still imports flash_rl.
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
        raise typer.Exit(1)


def read(file: Path) -> str:
    """The text, with its line ends; ends the command with 2 if it cannot be read."""
    try:
        return file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        typer.echo(f"{file} cannot be read: {error}", err=True)
        raise typer.Exit(2) from error


def show(file: Path, before: str, after: str) -> None:
    """The change as a diff."""
    target = str(file) if after.strip() else "/dev/null"
    lines = unified_diff(before.splitlines(), after.splitlines(), str(file), target, lineterm="")
    typer.echo("\n".join(lines))


def write(file: Path, text: str) -> None:
    """Write what is left; a file of which nothing is left goes, as FlashRL made it."""
    try:
        if text.strip():
            file.write_bytes(text.encode())
            typer.echo(f"cleaned {file}")
        else:
            file.unlink()
            typer.echo(f"removed {file}: it held nothing else")
    except OSError as error:
        typer.echo(f"{file} cannot be changed: {error}", err=True)
        raise typer.Exit(2) from error
