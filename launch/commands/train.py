"""The commands `run.sh train` and `stop`, and `python -m launch node`.

`train` trains a recipe on a cluster or on this machine, or shows what it would do (--dry-run). `node` is one host's
part of a run; `train` starts it and sends its plan as a line of JSON on stdin.
"""

import json
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascend_quant.terminal.exits import DONE, NOT_FORMED, WRONG_USE, fail
from launch.commands.recipe import Changes, ClusterOption, DataOption, ModelOption, RecipeName, of_data

if TYPE_CHECKING:
    from launch.cluster.inventory import Inventory
    from launch.plan import Job
    from launch.recipes import Paths, Recipe


def train(
    recipe: RecipeName,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- OVERRIDES", help="Overrides of Hydra: settings of verl, choices as scheme=bf16."),
    ] = None,
    cluster: ClusterOption = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Train on a Ray cluster that already exists: the address of its dashboard, as http://HOST:8265.",
        ),
    ] = None,
    changes: Changes = None,
    model: ModelOption = None,
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

    Exit status: 0 on success; 1 if the run failed (the last lines name the cause); 2 for wrong usage (with
    --dry-run, also settings that verl refuses); 3 if the cluster did not form (with --dry-run: if a check on a host
    failed, or a host could not be checked); 130 after Ctrl-C.
    """
    from launch import LaunchError
    from launch.cluster.inventory import load, this_machine
    from launch.cluster.run import run
    from launch.cluster.transport import ask
    from launch.plan.dry_run import ask_all, described
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
        chosen, number = load_recipe(recipe, made), new_run()
        if ray is not None:
            code = train_on(ray, chosen, places_on_nodes(chosen, model, folder, out), number, restart, dry_run, as_json)
            raise typer.Exit(code)
        inventory = load(cluster) if cluster is not None else this_machine(chosen.stack)
        local = locals_of(inventory)
        here = own_number(inventory, local, chosen.nodes) if on_this_node else None
        if on_this_node and chosen.nodes > 1 and out is None:
            raise LaunchError("--on-this-node: all hosts must write to the same folder: set it with --out")
        paths = places(chosen, inventory, number, local[0], model, folder, out)
        plan = make(chosen, inventory, paths, number, local, shell=os.environ, restarts=restart)
        if dry_run:
            code = show(chosen, plan.job, as_json, lambda: described(plan, ask_all(plan, ask)))
        else:
            code = run(plan, restart, here)
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    raise typer.Exit(code)


def train_on(
    address: str, recipe: "Recipe", paths: "Paths", number: str, restarts: int, dry_run: bool, as_json: bool
) -> int:
    """Train on an existing Ray cluster, or show the plan; return the exit code."""
    from launch.ray_jobs.cluster import connect
    from launch.ray_jobs.nodes import described
    from launch.ray_jobs.plan import make
    from launch.ray_jobs.run import run

    plan = make(recipe, paths, number, shell=os.environ, restarts=restarts)
    cluster = connect(address)
    if dry_run:
        return show(recipe, plan.job, as_json, lambda: described(plan, cluster))
    return run(plan, cluster, restarts)


def show(recipe: "Recipe", job: "Job", as_json: bool, describe: Callable[[], dict[str, Any]]) -> int:
    """Print what a run would do; return 3 if a host has a problem or does not answer, else 0.

    Args:
        describe: function that asks the hosts and returns the description.

    Raises:
        LaunchError: verl would refuse the job's settings; one line for each.
    """
    from ascend_quant.terminal.progress import waiting
    from launch import LaunchError
    from launch.plan.dry_run import in_the_way, text
    from launch.plan.validate import problems_of

    with waiting("asking verl, then the hosts"):
        refused, unchecked = problems_of(recipe.stack, job.entrypoint)
        if refused:
            raise LaunchError("\n".join(refused))
        tree = describe()
    tree["notes"] += [unchecked] if unchecked else []
    typer.echo(json.dumps(tree, indent=1) if as_json else text(tree))
    return NOT_FORMED if in_the_way(tree) else DONE


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
