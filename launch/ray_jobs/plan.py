"""What a run submits to a Ray cluster that is there: the recipe's command, files and variables.

NICs, addresses and devices are the cluster's: the variables of the environment table that name them, and those for
Ray's daemons, are left to it. `--set environment.NAME=VALUE` sets one of them for all nodes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from launch import LaunchError
from launch.environment.resolve import OF_HOST, node_environment, not_handed_on, of_shell
from launch.cluster.inventory import Ports
from launch.plan import Job
from launch.plan import job as jobs
from launch.plan.make import attention_problems, extra_problems
from launch.recipes import Paths, Recipe, resolve
from launch.system.software import Import
from launch.environment.variables import secret

EXPANDED = re.compile(r"\$(\w|\{)")  # Ray puts a variable of the node in its place
OF_NODE = {"address": "", "nic": "", "family": "ipv4", "devices": "", "places": ""}


@dataclass(frozen=True)
class RayPlan:
    """Plan of a run on a Ray cluster that is there.

    Attributes:
        run: its id.
        job: what is submitted; its entrypoint stands behind `python`.
        out: the folder of checkpoints and metrics on the nodes.
        paths: that must be on every node that computes.
        imports: Python modules that the run's processes import.
        notes: what its reader should know, a line each.
    """

    run: str
    recipe: Recipe
    job: Job
    out: str
    paths: list[str]
    imports: list[Import]
    notes: list[str]


def make(
    recipe: Recipe, paths: Paths, run: str, extra: Sequence[str], *, shell: Mapping[str, str], restarts: int
) -> RayPlan:
    """Make the plan of a run; `extra` are the user's own settings of verl, `shell` is this process's environment.

    Raises:
        LaunchError: settings that do not go together; a line for each thing to change.
    """
    resolved = resolve(recipe, paths)
    overrides = [*resolved.overrides, *extra]
    variables = environment(recipe.stack, overrides, resolved.environment, shell)
    found = [*extra_problems(recipe, extra), *attention_problems(recipe, overrides), *expanded(variables)]
    if found:
        raise LaunchError("\n".join(found))
    # all of them count as a user's: Ray refuses a variable that verl's ray.init names as well
    job = jobs.job(run, resolved, extra, [("run", variables)], restarts, paths)
    return RayPlan(
        run,
        recipe,
        Job(job.entrypoint, job.files, variables | job.environment),
        paths.out,
        jobs.needs(recipe, paths, overrides),
        jobs.imports(recipe, overrides),
        notes(variables, shell),
    )


def environment(
    stack: str, overrides: Sequence[str], recipe: Mapping[str, str], shell: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of every process of the run."""
    values = jobs.values(overrides, Ports()) | OF_NODE
    settings = node_environment(stack, values, [("recipe", recipe), ("shell", of_shell(shell, own=False))])
    return {
        one.name: one.value
        for one in settings
        if one.source != "table" or (one.name not in OF_HOST and not one.name.startswith("RAY_"))
    }


def expanded(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variable whose value Ray would change."""
    for name, value in variables.items():
        if EXPANDED.search(value):
            yield f"{name}: Ray would expand the $ in its value on each node: write what is meant"


def notes(variables: Mapping[str, str], shell: Mapping[str, str]) -> list[str]:
    """List what a reader of the plan should know, a line each."""
    lines = []
    if secrets := [name for name, value in variables.items() if value and secret(name, value)]:
        lines.append(f"who can open the cluster's dashboard can read {', '.join(secrets)}")
    if names := not_handed_on(shell):
        lines.append(
            f"of this shell, not handed to the cluster: {', '.join(names)}: each names this host's own NIC, address or "
            "devices. For all nodes: --set environment.NAME=VALUE"
        )
    return lines
