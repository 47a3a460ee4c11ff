"""`run.sh smoke`: does this installation work here?"""

import os
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.exits import DONE, FAILED, WRONG_USE, fail
from ascend_quant.whole_file import why_no_file, write_whole

DEFAULT = Path("smoke.json")


def smoke(
    out: Annotated[
        Path | None,
        typer.Option(help=f"Write the JSON there.  [default: {DEFAULT}, or print it where that cannot be written]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON; write a file with --out alone.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="doctor, train, or a probe or group of ascend-quant smoke, as engine; repeatable.  [default: all]"
        ),
    ] = None,
) -> None:
    """Does it work here? The doctor, operators, three training steps, a refitted engine: one JSON file to send back.

    Tests the stack named by ASCEND_QUANT_STACK (set in our images; default: cpu).

    Exit status: 0 where all that applies passed; 1 where something failed; 2 for wrong use.
    """
    from rich.console import Console

    from ascend_quant.smoke.probes import UnknownProbe
    from ascend_quant.smoke.results import as_text
    from launch.processes import end_as_after_ctrl_c
    from launch.smoke import run
    from launch.stacks import STACK_VARIABLE, all_pins

    stack, stacks = os.environ.get(STACK_VARIABLE) or "cpu", all_pins()
    if stack not in stacks:
        fail(f"{STACK_VARIABLE}={stack}: there is no such stack, only {', '.join(stacks)}", WRONG_USE)
    printed = as_json or (out is None and not os.access(".", os.W_OK))
    if out is None and not printed:
        out = DEFAULT
    if out is not None and (said := why_no_file(out)):
        fail(f"--out {said}", WRONG_USE)
    if out is not None and not os.access(out.absolute().parent, os.W_OK):
        fail(f"--out {out}: {out.absolute().parent} cannot be written", WRONG_USE)
    console = Console(stderr=printed)
    end_as_after_ctrl_c()
    try:
        content = run.smoke(stack, stacks[stack].devices, steps, only or [], console)
    except UnknownProbe as why:
        fail(f"--only: {why}; and {', '.join(run.ALONE)}", WRONG_USE)
    if printed:
        typer.echo(as_text(content), nl=False)
    if out is not None:
        try:
            write_whole(out, as_text(content))
        except OSError as error:
            fail(f"--out {out}: cannot be written: {error.strerror}", FAILED)
        console.print(f"written: {out.absolute()}", soft_wrap=True, highlight=False)
    raise typer.Exit(DONE if content["ok"] else FAILED)
