"""The commands `run.sh train` and `stop`, and `python -m launch node`.

`train` trains a recipe on a cluster or on this machine, or shows what it would do (--dry-run). `node` is one host's
part of a run; `train` starts it and sends its plan as a line of JSON on stdin.
"""

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ascend_quant.terminal.exits import WRONG_USE, fail
from launch.commands.recipe import Changes, DataOption, RecipeName, of_data

if TYPE_CHECKING:
    from launch.cluster.inventory import Inventory
    from launch.plan import Plan
    from launch.ray_jobs.cluster import Cluster as RayCluster
    from launch.ray_jobs.plan import RayPlan
    from launch.recipes import Paths, Recipe

NOT_FORMED = 3  # a host has a problem, or does not answer


def train(
    recipe: RecipeName,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- OVERRIDES", help="Overrides of Hydra: settings of verl, choices as scheme=bf16."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="An inventory's name, or the path of a .yaml file.  [default: this machine]")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Train on a Ray cluster that already exists: the address of its dashboard, as http://HOST:8265.",
        ),
    ] = None,
    changes: Changes = None,
    model: Annotated[
        str | None, typer.Option(help="Folder of the model on the hosts, or a hub id.  [default: the recipe's]")
    ] = None,
    data: DataOption = None,
    out: Annotated[
        str | None,
        typer.Option(help="Output folder on the hosts, with the checkpoints.  [default: runs/<run> on shared storage]"),
    ] = None,
    restart: Annotated[
        int, typer.Option(min=0, help="Maximum number of restarts from the last checkpoint after a failure.")
    ] = 0,
    on_this_node: Annotated[
        bool, typer.Option("--on-this-node", help="Start only this host's part; run the same command on every host.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done on each host, and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run, print JSON.")] = False,
) -> None:
    """Train a recipe with verl on a Ray cluster of its own, or with --ray on one that already exists.

    Exit status: 0 on success; 1 if the run failed (the last lines name the cause); 2 for wrong usage, or settings that
    verl refuses; 3 if the cluster did not form (with --dry-run: if a check on a host failed, or a host could not be
    checked); 130 after Ctrl-C.
    """
    from launch import LaunchError
    from launch.cluster.inventory import load, this_machine
    from launch.cluster.run import run
    from launch.plan.job import places
    from launch.plan.make import locals_of, make, new_run
    from launch.ray_jobs.plan import places as places_on_nodes
    from launch.recipes import load as load_recipe

    if as_json and not dry_run:
        fail("--json works only with --dry-run: add it", WRONG_USE)
    if on_this_node and cluster is None:
        fail("--on-this-node: name the inventory of all hosts with --cluster", WRONG_USE)
    if ray is not None and (cluster is not None or on_this_node):
        other = "--cluster" if cluster is not None else "--on-this-node"
        fail(f"--ray with {other}: the hosts are those of that Ray cluster; remove {other}", WRONG_USE)
    try:
        made, folder = of_data([*(changes or []), *(overrides or [])], data)
        chosen = load_recipe(recipe, made)
        if ray is not None:
            shown = ("json" if as_json else "text") if dry_run else None
            paths = places_on_nodes(chosen, model, folder, out)
            raise typer.Exit(train_on(ray, chosen, paths, restart, shown))
        inventory = load(cluster) if cluster is not None else this_machine(chosen.stack)
        local, number = locals_of(inventory), new_run()
        here = own_number(inventory, local, chosen.nodes) if on_this_node else None
        if on_this_node and chosen.nodes > 1 and out is None:
            raise LaunchError("--on-this-node: all hosts must write to the same folder: set it with --out")
        paths = places(chosen, inventory, number, local[0], model, folder, out)
        plan = make(chosen, inventory, paths, number, local, shell=os.environ, restarts=restart)
        code = show(plan, as_json) if dry_run else run(plan, restart, here)
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    raise typer.Exit(code)


def train_on(address: str, recipe: "Recipe", paths: "Paths", restarts: int, shown: str | None) -> int:
    """Train on an existing Ray cluster, or with `shown` ("text", "json") print the plan; return the exit code."""
    from launch.plan.make import new_run
    from launch.ray_jobs.cluster import connect
    from launch.ray_jobs.plan import make
    from launch.ray_jobs.run import run

    plan = make(recipe, paths, new_run(), shell=os.environ, restarts=restarts)
    cluster = connect(address)
    return show_on(plan, cluster, shown) if shown else run(plan, cluster, restarts)


def show_on(plan: "RayPlan", cluster: "RayCluster", how: str) -> int:
    """Print the plan for a Ray cluster and the problems of its nodes; return the exit code, as `show` does."""
    from ascend_quant.terminal.progress import waiting
    from launch import LaunchError
    from launch.plan.validate import problems_of
    from launch.ray_jobs.nodes import examine, lines_of
    from launch.ray_jobs.plan import described, text

    with waiting("asking verl, then the nodes"):
        refused, unchecked = problems_of(plan.recipe.stack, plan.job.entrypoint)
        if refused:
            raise LaunchError("\n".join(refused))
        problems, found = lines_of(examine(cluster, plan, f"{plan.run}-nodes"))
    tree = described(plan, f"Ray {cluster.version} at {cluster.address}")
    tree |= {"notes": [*plan.notes, *filter(None, [unchecked]), *found], "problems": problems}
    typer.echo(json.dumps(tree, indent=1) if how == "json" else "\n".join(text(tree)))
    return NOT_FORMED if problems else 0


def own_number(inventory: "Inventory", local: Sequence[bool], nodes: int) -> int:
    """Return the number of the inventory's host that is this machine.

    Raises:
        LaunchError: no host is this machine, or several are, or the recipe does not use it.
    """
    from launch import LaunchError
    from launch.environment import network

    mine = [number for number, here in enumerate(local) if here]
    hosts = ", ".join(host.address for host in inventory.hosts)
    if not mine:
        raise LaunchError(
            f"--on-this-node: this machine is not a host of the inventory ({hosts}); its addresses are "
            f"{network.described(network.nics())}"
        )
    if len(mine) > 1:
        named = ", ".join(inventory.hosts[number].address for number in mine)
        raise LaunchError(f"--on-this-node: {named} all refer to this machine: list each host once")
    if mine[0] >= nodes:
        raise LaunchError(
            f"--on-this-node: the recipe uses the first {nodes} of {hosts}; this machine is not one of them"
        )
    return mine[0]


def show(plan: "Plan", as_json: bool) -> int:
    """Print the plan with the answers of its hosts; return 3 if a host has a problem or does not answer, else 0.

    Raises:
        LaunchError: verl would refuse the job's settings; one line for each.
    """
    from ascend_quant.terminal.progress import waiting
    from launch import LaunchError
    from launch.cluster.transport import ask
    from launch.plan.dry_run import ask_all, described, text
    from launch.plan.validate import problems_of

    with waiting("asking verl, then the hosts"):
        found, unchecked = problems_of(plan.inventory.stack, plan.job.entrypoint)
        if found:
            raise LaunchError("\n".join(found))
        if unchecked:
            plan.notes.append(unchecked)
        tree = described(plan, ask_all(plan, ask))
    typer.echo(json.dumps(tree, indent=1) if as_json else text(tree))
    return NOT_FORMED if any(host["silent"] or host["problems"] for host in tree["hosts"]) else 0


def stop(
    run: Annotated[
        str | None, typer.Argument(help="The run's id, or its folder (runs/RUN).  [default: the active run]")
    ] = None,
) -> None:
    """Stop a run on all its hosts. Processes that do not belong to it are left alone."""
    from launch import LaunchError
    from launch.cluster.run import stop as stop_run

    try:
        code = stop_run(run)
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    raise typer.Exit(code)


def node() -> None:
    """Run one host's part of a run, with orders from stdin. `train` starts this on each host."""
    from launch.nodes.part import main

    raise typer.Exit(main())
