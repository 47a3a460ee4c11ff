"""Whether the nodes of a Ray cluster have what a run needs: a small job looks at all of them before the run."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from launch import ROOT, LaunchError
from launch.system.cause import cause_in
from launch.nodes.checks import skew
from launch.ray_jobs import wheel
from launch.ray_jobs.cluster import Cluster
from launch.ray_jobs.look import MARK
from launch.ray_jobs.plan import RayPlan
from launch.system.software import plain, public, sources
from launch.recipes.stacks import pins

SHIPPED = ("__init__.py", "software.py", "ray_jobs/__init__.py", "ray_jobs/look.py")
OURS = "ascend_quant"
LOOK_SECONDS = 180
Nodes = list[dict[str, Any]]


def look(cluster: Cluster, plan: RayPlan, submission: str, ended: Callable[[], bool] = lambda: False) -> Nodes:
    """Return what each node has, see look.py; `ended` says whether the waiting for it is to end.

    Raises:
        LaunchError: the cluster could not be asked, with the cause.
    """
    asked = {
        "imports": [asdict(one) for one in plan.imports],
        "packages": [plain(name) for name in pins(plan.recipe.stack).packages],
        "paths": plan.paths,
        "out": plan.out,
    }
    with TemporaryDirectory() as folder:
        for name in SHIPPED:
            file = Path(folder, "launch", name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes((ROOT / "launch" / name).read_bytes())
        Path(folder, "asked.json").write_text(json.dumps(asked))
        command = ["python", "-m", "launch.ray_jobs.look"]
        cluster.submit(submission, plan.run, command, {"working_dir": folder})
    info = cluster.wait(submission, LOOK_SECONDS, ended)
    lines = cluster.get(f"/api/jobs/{submission}/logs")["logs"].splitlines()
    if answer := next((line for line in lines if line.startswith(MARK)), None):
        return json.loads(answer.removeprefix(MARK))
    raised = cause_in(lines)
    raise LaunchError(f"the nodes could not be looked at: {raised.text if raised else info['message']}")


def lacking_ours(nodes: Nodes) -> list[str]:
    """Return the addresses of nodes without these sources, to which the run brings them."""
    here = sources([wheel.own_sources()])
    return [node["address"] for node in nodes if node["sources"] != here]


def problems(nodes: Nodes, plan: RayPlan) -> list[str]:
    """List what would stop the run, a line each, with the fix."""
    subjects = (_devices(nodes, plan), _alike(nodes), _imports(nodes, plan), _paths(nodes, plan))
    return [line for subject in subjects for line in subject]


def notes(nodes: Nodes, stack: str) -> list[str]:
    """List the packages that are not as the stack pins them, a line each."""
    wanted = {plain(name): version for name, version in pins(stack).packages.items()}
    found = Counter(
        f"{name} {node['packages'].get(name, 'missing')}; stack {stack} has {version}"
        for node in nodes
        for name, version in wanted.items()
        if public(node["packages"].get(name, "")) != version
    )
    return [f"{line} ({count} of {len(nodes)} nodes)" for line, count in found.items()]


def _devices(nodes: Nodes, plan: RayPlan) -> Iterator[str]:
    recipe = plan.recipe
    kind = "NPU" if pins(recipe.stack).devices == "npu" else "GPU"  # on stack cpu, too, verl asks for GPU by name
    there = [int(node["resources"].get(kind, 0)) for node in nodes]
    if sum(count >= recipe.devices_per_node for count in there) < recipe.nodes:
        has = ", ".join(f"{node['address']} {count}" for node, count in zip(nodes, there, strict=True))
        yield (
            f"devices: the recipe {recipe.name} wants {recipe.nodes} nodes with {recipe.devices_per_node} {kind} of "
            f"Ray each; the cluster has {has}: use fewer with --set nodes=.. devices_per_node=.."
        )


def _alike(nodes: Nodes) -> Iterator[str]:
    first, *others = [{"Python": node["Python"], **node["packages"]} for node in nodes]
    for node, versions in zip(nodes[1:], others, strict=True):
        if differing := skew(first, versions):
            yield f"{node['address']}: version skew: {'; '.join(differing)} ({nodes[0]['address']})"


def _imports(nodes: Nodes, plan: RayPlan) -> Iterator[str]:
    for number, one in enumerate(plan.imports):
        lacking = [node["address"] for node in nodes if number in node["missing"]]
        if lacking and one.module != OURS:  # which the run brings
            yield f"{', '.join(lacking)}: {one.what}: {one.fix}"


def _paths(nodes: Nodes, plan: RayPlan) -> Iterator[str]:
    """Yield what is missing where tasks run: a head without CPUs (num-cpus: 0) does nothing but to start the driver."""
    computing = [node for node in nodes if node["resources"].get("CPU")]
    for path in plan.paths:
        if absent := [node["address"] for node in computing if path in node["absent"]]:
            yield f"{', '.join(absent)}: {path} is not there: put it on storage that all nodes share"
    if locked := [node["address"] for node in computing if not node["writable"]]:
        yield f"{', '.join(locked)}: --out {plan.out} cannot be written"


def described(nodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the nodes for --dry-run."""
    return [{name: node[name] for name in ("address", "Python", "packages", "resources")} for node in nodes]
