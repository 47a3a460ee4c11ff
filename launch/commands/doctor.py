"""`run.sh doctor`: check whether this machine, or a cluster, could carry out a run."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ascend_quant.terminal.exits import WRONG_USE, fail
from launch.commands.recipe import Changes, ClusterOption, of_data

if TYPE_CHECKING:
    from launch.doctor.checking import Report
    from launch.recipes import Recipe


def doctor(
    cluster: ClusterOption = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --recipe, run the checks on the nodes of this Ray cluster.",
        ),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Also check what this recipe needs.")] = None,
    changes: Changes = None,
    model: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    data: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    out: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check for problems that would stop a run, and print a fix for each. Nothing is changed.

    Exit status: 0 if there are no errors (warnings are allowed); 1 if an error was found; 2 for wrong usage.
    """
    from rich.console import Console

    from ascend_quant.terminal.progress import waiting
    from launch import LaunchError
    from launch.doctor.checking import show
    from launch.recipes import load

    if ray is not None and cluster is not None:
        fail("--ray with --cluster: the hosts are those of that Ray cluster; remove --cluster", WRONG_USE)
    of_recipe = {"--ray": ray, "--set": changes, "--model": model, "--data": data, "--out": out}
    if recipe is None and (given := [name for name, value in of_recipe.items() if value]):
        fail(f"{given[0]} works only with --recipe: add it", WRONG_USE)
    try:
        made, folder = of_data(changes, data)
        wanted = load(recipe, made) if recipe is not None else None
        with waiting("examining"):
            if ray and wanted is not None:
                report = examine_nodes(ray, wanted, model, folder, out)
            else:
                report = examine_hosts(cluster, wanted, model, folder, out)
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    if as_json:
        typer.echo(report.as_json())
    else:
        show(report, Console())
    raise typer.Exit(report.exit_code)


def examine_hosts(
    cluster: str | None, recipe: "Recipe | None", model: str | None, data: str | None, out: str | None
) -> "Report":
    """Return the findings on all hosts of an inventory, or on this machine."""
    from launch.cluster.inventory import load, this_machine
    from launch.doctor.hosts import examine
    from launch.plan.job import places
    from launch.plan.make import locals_of, new_run

    inventory = load(cluster) if cluster is not None else None
    if recipe is None:
        return examine(inventory)
    hosts = inventory or this_machine(recipe.stack)
    return examine(inventory, recipe, places(recipe, hosts, new_run(), locals_of(hosts)[0], model, data, out))


def examine_nodes(address: str, recipe: "Recipe", model: str | None, data: str | None, out: str | None) -> "Report":
    """Return the findings on the nodes of a Ray cluster that already exists."""
    from launch.plan.make import new_run
    from launch.ray_jobs.cluster import connect
    from launch.ray_jobs.nodes import examine
    from launch.ray_jobs.plan import make, places

    plan = make(recipe, places(recipe, model, data, out), new_run(), shell=os.environ)
    return examine(connect(address), plan, f"{plan.run}-doctor")
