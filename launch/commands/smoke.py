"""`run.sh smoke`: does this installation work on this machine?"""

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from launch.commands.ending import FAILED, WRONG_USE, fail

DEFAULT = Path("smoke.json")
STDOUT = Path("-")


def smoke(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the JSON there; - is stdout.  [default: smoke.json]")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(help="A part: manifest, doctor, operators, refit, generate or train; repeatable.  [default: all]"),
    ] = None,
) -> None:
    """Look at this machine, try the device's kernels, refit a real engine, train a few steps; one table, one JSON file.

    Of the stack in ASCEND_QUANT_STACK, which images set, else of cpu. Ends with 0 (all that applies passed), 1 or 2
    (wrong use).
    """
    from rich.console import Console

    from launch.smoke import run
    from launch.stacks import STACK_VARIABLE, all_pins

    stack, stacks = os.environ.get(STACK_VARIABLE) or "cpu", all_pins()
    if stack not in stacks:
        fail(f"{STACK_VARIABLE}={stack}: there is no such stack, only {', '.join(stacks)}", WRONG_USE)
    if unknown := [name for name in only or [] if name not in run.NAMES]:
        fail(f"--only {unknown[0]}: there is no such part; choose from {', '.join(run.NAMES)}", WRONG_USE)
    target = json_file or (DEFAULT if os.access(".", os.W_OK) else STDOUT)
    if target != STDOUT and not os.access(target.absolute().parent, os.W_OK):
        fail(f"--json {target}: {target.absolute().parent} cannot be written", WRONG_USE)
    console = Console(stderr=target == STDOUT)
    for number in (signal.SIGTERM, signal.SIGHUP):  # end it as Ctrl-C does: with what its parts have started
        signal.signal(number, signal.default_int_handler)
    content = run.smoke(stack, stacks[stack].devices, steps, only or [], console)
    if target == STDOUT:
        typer.echo(run.as_text(content), nl=False)
    else:
        target.write_text(run.as_text(content))
        console.print(f"written: {target.absolute()}", soft_wrap=True, highlight=False)
    raise typer.Exit(0 if content["ok"] else FAILED)
