"""`run.sh doctor` and `run.sh smoke`: does it work here? The one looks, the other runs."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.exits import DONE, FAILED, WRONG_USE, fail
from ascend_quant.whole_file import why_no_file, write_whole
from launch.commands.recipe import Changes, of_data

DEFAULT = Path("smoke.json")


def doctor(
    cluster: Annotated[
        str | None, typer.Option(help="An inventory's name, or the path of a .yaml file.  [default: this machine]")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Look also at what this recipe needs.")] = None,
    changes: Changes = None,
    model: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    data: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    out: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look for what would stop a run, with a fix for each finding. Changes nothing.

    Exit status: 0 where all is well, or warnings only; 1 where an error was found; 2 for wrong use.
    """
    from rich.console import Console

    from launch import LaunchError
    from launch.doctor.checking import show
    from launch.doctor.hosts import examine
    from launch.inventory import load, this_machine
    from launch.plan.job import places
    from launch.plan.make import locals_of, new_run
    from launch.recipes import load as load_recipe

    of_recipe = {"--set": changes, "--model": model, "--data": data, "--out": out}
    if recipe is None and (given := [name for name, value in of_recipe.items() if value]):
        fail(f"{given[0]} is for --recipe: say which", WRONG_USE)
    try:
        inventory, wanted, paths = load(cluster) if cluster is not None else None, None, None
        if recipe is not None:
            made, folder = of_data(changes, data)
            wanted = load_recipe(recipe, changes=made)
            hosts = inventory or this_machine(wanted.stack)
            paths = places(wanted, hosts, new_run(), locals_of(hosts)[0], model, folder, out)
        with Console(stderr=True).status("examining"):
            report = examine(inventory, wanted, paths)
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    if as_json:
        typer.echo(report.as_json())
    else:
        show(report, Console())
    raise typer.Exit(report.exit_code)


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
    from launch.smoke import ALONE
    from launch.smoke import smoke as tried
    from launch.stacks import STACK_VARIABLE, all_pins

    stack, stacks = os.environ.get(STACK_VARIABLE) or "cpu", all_pins()
    if stack not in stacks:
        fail(f"{STACK_VARIABLE}={stack}: there is no such stack, only {', '.join(stacks)}", WRONG_USE)
    printed = as_json or (out is None and not os.access(".", os.W_OK))
    if out is None and not printed:
        out = DEFAULT
    if out is not None and (said := why_no_file(out)):
        fail(f"--out {said}", WRONG_USE)
    console = Console(stderr=printed)
    end_as_after_ctrl_c()
    try:
        content = tried(stack, stacks[stack].devices, steps, only or [], console)
    except UnknownProbe as why:
        fail(f"--only: {why}; and {', '.join(ALONE)}", WRONG_USE)
    if printed:
        typer.echo(as_text(content), nl=False)
    if out is not None:
        try:
            write_whole(out, as_text(content))
        except OSError as error:
            fail(f"--out {out}: cannot be written: {error.strerror}", FAILED)
        console.print(f"written: {out.absolute()}", soft_wrap=True, highlight=False)
    raise typer.Exit(DONE if content["ok"] else FAILED)
