"""`run.sh train`: a recipe on a cluster, or on this machine; with --dry-run, what that would do."""

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from launch.commands.ending import WRONG_USE, fail
from launch.commands.recipe import pairs

if TYPE_CHECKING:
    from launch.inventory import Inventory
    from launch.plan import Plan


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, or the path of a .yaml file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="-- OVERRIDES", help="Settings of verl, over the recipe's: key=value.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="An inventory's name, or the path of a .yaml file.  [default: this machine]")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the recipe; repeatable.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder of the model on the hosts, or an id of the hub.  [default: the recipe's]")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder of the data sets on the hosts.  [default: data in the project]")
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Folder of checkpoints on the hosts.  [default: runs/<run> where they share one]")
    ] = None,
    restart: Annotated[int, typer.Option(min=0, help="Start again from the last checkpoint, this often.")] = 0,
    on_this_node: Annotated[
        bool, typer.Option("--on-this-node", help="This host's part only: run the same command on every host.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done on each host, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: as JSON.")] = False,
) -> None:
    """Train a recipe with verl on a Ray cluster of its own.

    Ends with 0 (done), 1 (the run failed; the last lines name the cause), 2 (wrong use), 3 (the cluster did not form)
    or 130 (Ctrl-C).
    """
    from launch.errors import LaunchError
    from launch.recipes import RecipeError

    if as_json and not dry_run:
        fail("--json is for --dry-run: add it", WRONG_USE)
    try:
        plan, here = planned(recipe, overrides or [], cluster, changes or [], model, data, out, restart, on_this_node)
        if dry_run:
            show(plan, as_json)
            return
    except (LaunchError, RecipeError) as error:
        fail(str(error), WRONG_USE)
    raise typer.Exit(start(plan, here, restart))


def planned(
    name: str,
    overrides: Sequence[str],
    cluster: str | None,
    changes: Sequence[str],
    model: str | None,
    data: str | None,
    out: str | None,
    restarts: int,
    on_this_node: bool,
) -> "tuple[Plan, int | None]":
    """The plan, and with --on-this-node this host's number in it.

    Raises:
        LaunchError, RecipeError: what is wrong, a line each.
    """
    from launch.errors import LaunchError
    from launch.inventory import load, this_machine
    from launch.plan.make import locals_of, make, new_run
    from launch.plan.places import places
    from launch.recipes import load as load_recipe

    recipe = load_recipe(name, changes=pairs(changes))
    if on_this_node and cluster is None:
        raise LaunchError("--on-this-node: say with --cluster which hosts there are")
    inventory = load(cluster) if cluster else this_machine(recipe.stack)
    local, run = locals_of(inventory), new_run()
    here = own_number(inventory, local, recipe.nodes) if on_this_node else None
    if on_this_node and recipe.nodes > 1 and out is None:
        raise LaunchError("--on-this-node: the hosts must write to the same folder: say which with --out")
    paths = places(recipe, inventory, run, local[0], model, data, out)
    check_overrides(overrides)
    return make(recipe, inventory, paths, run, local, overrides, os.environ, restarts), here


def check_overrides(overrides: Sequence[str]) -> None:
    """Each must be one: a word that was meant for something else is found here, not by hydra on the head."""
    from launch.errors import LaunchError

    if wrong := [one for one in overrides if "=" not in one and not one.startswith("~")]:
        raise LaunchError(f"{wrong[0]!r} is no setting of verl: write key=value behind --, as -- trainer.save_freq=10")


def own_number(inventory: "Inventory", local: Sequence[bool], nodes: int) -> int:
    """Which host of the inventory this machine is, by its own addresses.

    Raises:
        LaunchError: none, several, or one that the recipe does not use.
    """
    from launch import network
    from launch.errors import LaunchError

    mine = [number for number, here in enumerate(local) if here]
    hosts = ", ".join(host.address for host in inventory.hosts)
    if not mine:
        raise LaunchError(
            f"--on-this-node: this machine is none of the inventory's hosts ({hosts}); it has "
            f"{network.described(network.nics())}"
        )
    if len(mine) > 1:
        named = ", ".join(inventory.hosts[number].address for number in mine)
        raise LaunchError(f"--on-this-node: {named} are all this machine: each host needs an entry of its own")
    if mine[0] >= nodes:
        raise LaunchError(
            f"--on-this-node: the recipe uses the first {nodes} of {hosts}; this machine is not one of them"
        )
    return mine[0]


def show(plan: "Plan", as_json: bool) -> None:
    """Print the plan, with what its hosts say of themselves."""
    from launch.cluster.transport import ask
    from launch.plan.asked import ask_all
    from launch.plan.described import described
    from launch.plan.show import text

    tree = described(plan, ask_all(plan, ask))
    typer.echo(json.dumps(tree, indent=1) if as_json else text(tree))


def start(plan: "Plan", here: int | None, restarts: int) -> int:
    """Run the plan; the exit code."""
    from launch.cluster import on_this_node, run

    return run.run(plan, restarts) if here is None else on_this_node.run(plan, here, restarts)
