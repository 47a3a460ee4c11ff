"""Inventories: on which machines a run takes place; from configs/clusters/NAME.yaml, or this machine alone.

fields.py says what there is; here a file is read. Where its fields are valid one by one, it is said what does not go
together, and what to write instead.
"""

import os
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from pydantic import ValidationError

from ascend_quant.documents import BadDocument, read_yaml
from launch.errors import LaunchError
from launch.inventory.fields import Host, Inventory, Ports, Ssh, is_loopback, same
from launch.recipes.files import did_you_mean, explain
from launch.root import ROOT

__all__ = ["Host", "Inventory", "Ports", "Ssh", "load", "names", "this_machine"]

FOLDER = ROOT / "configs" / "clusters"
LEAST_WORKERS = 40  # the first 20 are Ray's daemons', and a small run has as many processes


def names(folder: Path = FOLDER) -> list[str]:
    """The inventories that can be loaded by name."""
    return sorted(file.stem for file in folder.glob("*.yaml"))


def load(name: str, folder: Path = FOLDER) -> Inventory:
    """The inventory called `name`, or in the file `name` if that ends in .yaml, checked.

    Raises:
        LaunchError: there is none, or it is wrong: each line names the file and what to change.
    """
    file = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not os.path.isfile(file):
        nearest = did_you_mean(name, names(folder)).replace("keys", "names")
        raise LaunchError(f"no inventory {name!r}: give the path of a .yaml file, or a name. {nearest}")
    try:
        tree = read_yaml(file)
    except BadDocument as error:
        raise LaunchError(str(error)) from error
    try:
        inventory = Inventory.model_validate(tree)
    except ValidationError as error:
        raise _wrong(file, explain(error, Inventory)) from error
    if found := list(problems(inventory)):
        raise _wrong(file, found)
    return inventory


def this_machine(stack: str) -> Inventory:
    """The inventory without a file: one host, this one, with this interpreter."""
    return Inventory(stack=stack, project=str(ROOT), python=sys.executable, hosts=[Host(address="127.0.0.1")])


def _wrong(file: Path, found: list[str]) -> LaunchError:
    return LaunchError("\n".join(f"{file}: {problem}" for problem in found))


def problems(inventory: Inventory) -> Iterator[str]:
    """Everything that is wrong with an inventory whose fields are valid one by one."""
    yield from _addresses([host.address for host in inventory.hosts])
    yield from _ports(inventory.ports)
    if inventory.mounts and inventory.image is None:
        yield "mounts: are for a container: name an image, or leave them out"
    targets = [mount.split(":")[1].rstrip("/") for mount in inventory.mounts]
    for target in dict.fromkeys(targets):
        if targets.count(target) > 1:
            yield f"mounts: {target} in the container is there twice: one folder can lie there"


def _addresses(addresses: list[str]) -> Iterator[str]:
    hosts = [same(address) for address in addresses]
    for number, host in enumerate(hosts):
        if host in hosts[:number]:
            first = addresses[hosts.index(host)]
            also = "" if first == addresses[number] else f" ({first} is the same)"
            yield f"hosts: {addresses[number]} is there twice{also}: each host has an address of its own"
        if is_loopback(addresses[number]) and len(hosts) > 1:
            yield f"hosts: {addresses[number]} is each machine's own loopback: write the address that other hosts reach"


def _ports(ports: Ports) -> Iterator[str]:
    """Each port is one service's; HCCL's ranges may be auto, and those of the NPUs are on another network."""
    ranges = {"ray": (ports.ray, ports.ray), "dashboard": (ports.dashboard, ports.dashboard)}
    ranges |= {name: _range(value) for name, value in (("workers", ports.workers), ("hccl_host", ports.hccl_host))}
    given = {name: one for name, one in ranges.items() if one}
    for (name, (low, high)), (other, (least, most)) in combinations(given.items(), 2):
        if low <= most and least <= high:
            yield f"ports: {name} and {other} share {max(low, least)}: give each ports of its own"
    low, high = given["workers"]
    if high - low + 1 < LEAST_WORKERS:
        yield f"ports.workers: {ports.workers} has {high - low + 1} ports, and a host needs {LEAST_WORKERS} or more"


def _range(value: str) -> tuple[int, int] | None:
    low, dash, high = value.partition("-")
    return (int(low), int(high)) if dash else None
