"""Plans for tests: a small inventory, a recipe, and what hosts would answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from launch.cluster import inventory as inventories
from launch.cluster.inventory import Inventory
from launch.plan import Plan
from launch.plan.job import places
from launch.plan.make import make, problems
from launch.recipes import load

RUN = "20260102-030405-abcd"
TWO_A2 = "qwen3-30b-a3b-int8-grpo-2xa2"


def inventory(
    stack: str = "ascend-cann9.1", hosts: Sequence[Any] = ("192.0.2.11", "192.0.2.12"), **fields: Any
) -> Inventory:
    """An inventory of these addresses (or whole hosts), with /shared on each."""
    listed = [{"address": host} if isinstance(host, str) else host for host in hosts]
    tree = {"stack": stack, "hosts": listed, "shared": ["/shared"], "project": "/opt/project"}
    return Inventory.model_validate(tree | fields)


def plan(
    recipe: str = TWO_A2,
    machines: Inventory | None = None,
    extra: Sequence[str] = (),
    shell: Mapping[str, str] | None = None,
    restarts: int = 0,
    local: Sequence[bool] | None = None,
    **paths: str | None,
) -> Plan:
    """The plan of a recipe on machines that are elsewhere, unless `local` says otherwise."""
    machines = machines or inventory()
    chosen = load(recipe, extra)
    local = [False] * len(machines.hosts) if local is None else local
    where = places(chosen, machines, RUN, local[0], **paths)
    return make(chosen, machines, where, RUN, local, shell=shell or {}, restarts=restarts)


def inventories_for(name: str) -> list[Inventory]:
    """Those of configs/clusters that a recipe fits."""
    recipe = load(name)
    machines = [one for one in map(inventories.load, inventories.names()) if one.stack == recipe.stack]
    return [one for one in machines if not [*problems(recipe, one, places(recipe, one, RUN, False))]]


def facts(nic: str = "bond0", address: str = "192.0.2.11", devices: Sequence[int] = range(8)) -> dict[str, Any]:
    """What a host answers to `ask`."""
    wire = {"nic": nic, "address": address, "family": "ipv4"}
    return {"chosen": {"wire": wire, "devices": list(devices), "places": list(range(len(devices)))}, "problems": []}
