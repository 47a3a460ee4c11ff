"""The plan of a run on a Ray cluster that already exists: the job, with the recipe's command, files and variables.

The cluster determines NICs, addresses and devices, so the variables of the environment table that name them, and those
of Ray's daemons, are left out. `--set environment.NAME=VALUE` sets one of them on all nodes.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from launch import LaunchError
from launch.cluster.inventory import Ports
from launch.environment.resolve import OF_HOST, node_environment, not_handed_on, of_shell
from launch.environment.variables import secret, without_secrets
from launch.inputs.model import place
from launch.plan import Job, Wanted
from launch.plan import job as jobs
from launch.plan.wanted import wanted_here
from launch.recipes import Paths, Recipe, paths_of

EXPANDED = re.compile(r"\$(\w|\{)")  # Ray replaces this with a variable of the node
OF_NODE = {"address": "", "nic": "", "family": "ipv4", "devices": "", "places": ""}


@dataclass(frozen=True)
class RayPlan:
    """Plan of a run on a Ray cluster that already exists.

    Attributes:
        run: the run's id.
        recipe: the recipe.
        job: the job that is submitted; its entrypoint lacks the leading `python`.
        wanted: requirements of each node.
        notes: notes for the reader of the plan, one line each.
    """

    run: str
    recipe: Recipe
    job: Job
    wanted: Wanted
    notes: list[str]


def places(recipe: Recipe, model: str | None, data: str | None, out: str | None) -> Paths:
    """Return the paths of a run on nodes whose folders are not known.

    Raises:
        LaunchError: a path is not given and has no default.
    """
    if data is None and (recipe.data.name or not (model or recipe.model.hub)):
        raise LaunchError("--data is required: the folder of the data sets on the nodes")
    if out is None:
        raise LaunchError("--out is required: a folder that the nodes share")
    return paths_of(recipe, model and place(model), os.path.abspath(data or ""), os.path.abspath(out))


def make(recipe: Recipe, paths: Paths, run: str, *, shell: Mapping[str, str], restarts: int = 0) -> RayPlan:
    """Make the plan of a run; `shell` is the environment of this process.

    Raises:
        LaunchError: settings contradict each other; one line for each thing to change.
    """
    variables = environment(recipe, shell)
    found = [
        f"{name}={value}: Ray would replace its $ on each node: write the value itself"
        for name, value in without_secrets(variables).items()
        if EXPANDED.search(variables[name])
    ]
    if found:
        raise LaunchError("\n".join(found))
    # all variables count as the user's, since Ray refuses those that verl's ray.init sets as well
    job = jobs.job(run, recipe, paths, [("run", variables)], restarts)
    wanted = replace(
        wanted_here(recipe, paths),
        hosts=recipe.nodes,
        ports={},
        environment={name: value for name, value in variables.items() if not secret(name, value)},
    )
    job = Job(job.entrypoint, {".run": run, **job.files}, variables | job.environment)
    return RayPlan(run, recipe, job, wanted, notes(variables, shell))


def environment(recipe: Recipe, shell: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for every process of the run."""
    values, layers = jobs.values(recipe, Ports()) | OF_NODE, [("recipe", recipe.environment)]
    settings = node_environment(recipe.stack, values, [*layers, ("shell", of_shell(shell, own=False))])
    return {
        one.name: one.value
        for one in settings
        if one.source != "table" or (one.name not in OF_HOST and not one.name.startswith("RAY_"))
    }


def notes(variables: Mapping[str, str], shell: Mapping[str, str]) -> list[str]:
    """List notes for the reader of the plan, one line each."""
    lines = []
    if secrets := [name for name, value in variables.items() if value and secret(name, value)]:
        lines.append(f"everyone who can open the cluster's dashboard can read {', '.join(secrets)}")
    if names := not_handed_on(shell):
        lines.append(
            f"variables of this shell that are not passed to the cluster: {', '.join(names)}: each names this host's "
            "own NIC, address or devices. For all nodes: --set environment.NAME=VALUE"
        )
    return lines
