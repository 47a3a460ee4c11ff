"""Inventories: the machines of a run, from configs/clusters/NAME.yaml, or only this machine.

A host is identified by an IP address or a host name. If each field of a file is valid, `problems` yields contradictions
between fields, and their fixes.
"""

import os
import re
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator

from ascend_quant.files.documents import BadDocument, read_yaml
from ascend_quant.recipes import nearest
from ascend_quant.recipes.node import Fields, Stack
from launch import ROOT, LaunchError
from launch.environment import variables
from launch.recipes.files import checked

FOLDER = ROOT / "configs" / "clusters"
LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
NAME = re.compile(rf"{LABEL}(?:\.{LABEL})*\.?")


def address(value: str) -> str:
    """Validate an IP address or a host name, since ssh would parse one that begins with - as an option.

    Raises:
        ValueError: the value is neither.
    """
    if ip(value) is None and not NAME.fullmatch(value):
        raise ValueError("expected an IPv4 or IPv6 address, or a host name; user and port belong in ssh")
    return value


def ip(value: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address; return None if the text is not one."""
    try:
        return ip_address(value)
    except ValueError:
        return None


def same(value: str) -> str:
    """Normalize an address, so that 2001:db8::1 and 2001:db8:0:0::1, or NODE1 and node1, are equal."""
    return str(ip(value) or value.lower().rstrip("."))


def _port_range(value: str) -> str:
    low, _, high = value.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high) <= 65535):
        raise ValueError("a port range has the form LOW-HIGH, such as 20000-29999")
    return value


def _devices(value: Any) -> Any:
    """Validate all three forms together, since for a union, pydantic would report an error for each form."""
    numbers, least = (value, 0) if isinstance(value, list) else ([value], 1)
    whole = numbers and all(type(one) is int and one >= least for one in numbers)
    if value != "auto" and not (whole and len(set(numbers)) == len(numbers)):
        raise ValueError("devices must be auto, a count, or a list of indices such as [0, 1, 2, 3]")
    return value


Text = Annotated[str, Field(min_length=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
PortRange = Annotated[str, AfterValidator(_port_range)]
HcclPorts = Annotated[str, AfterValidator(lambda value: value if value == "auto" else _port_range(value))]
Devices = Annotated[Literal["auto"] | int | list[int], PlainValidator(_devices)]
Absolute = Annotated[str, Field(pattern="^/+[^/]"), AfterValidator(lambda path: path.rstrip("/"))]
Mount = Annotated[str, Field(pattern=r'^/[^:,"\n]*:/[^:,"\n]*(:ro)?$')]  # commas separate the options of --mount
Variables = Annotated[dict[str, str], AfterValidator(variables.checked)]
Address = Annotated[str, AfterValidator(address)]
Image = Annotated[str, Field(pattern="^[a-z0-9][A-Za-z0-9._/:@-]*$")]  # cannot be an option of docker
User = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_.-]*$")]  # cannot be an option of ssh


class Ssh(Fields):
    """Settings of ssh logins; unset ones are read from ~/.ssh/config."""

    user: User | None = None
    port: Port | None = None
    key: Text | None = None


class Ports(Fields):
    """Ports of a run, the same on every host.

    Attributes:
        ray: port of Ray's head.
        dashboard: port of Ray's dashboard and job API, on the head.
        workers: range for Ray's workers and daemons.
        hccl_host, hccl_npu: ranges for HCCL, on the NICs of the host and of the devices; auto: any ports.
    """

    ray: Port = 6766
    dashboard: Port = 8260
    workers: PortRange = "20000-29999"
    hccl_host: HcclPorts = "60000-60050"
    hccl_npu: HcclPorts = "61000-61050"


class Host(Fields):
    """Fields of one machine.

    Attributes:
        address: the IPv4 or IPv6 address, or the host name, at which other hosts reach it; `ssh` contains the user.
        nic: name of the NIC that has the address; auto: it is found by the address.
        devices: auto (as many as the recipe needs), a count, or a list of indices.
        ssh: ssh settings, which override the inventory's.
        environment: variables for this host, which override the inventory's.
    """

    address: Address
    nic: Text = "auto"
    devices: Devices = "auto"
    ssh: Ssh = Ssh()
    environment: Variables = Field(default_factory=dict)


class Inventory(Fields):
    """Fields of the machines of a run; the first host is the head.

    Attributes:
        stack: the software stack on the hosts.
        image: container image of the run; without one, the run uses the hosts directly.
        project: folder of the checkout on the hosts; None: the path of this checkout, or the image's own.
        python: path of the Python interpreter, relative to `project`; None: .venv/bin/python in a checkout, else this
            interpreter's path, or the image's python.
        ssh: ssh settings for all hosts.
        hosts: the machines.
        mounts: folders for the container, as /on/the/host:/in/the/container[:ro].
        shared: folders on storage that all hosts share, by their paths in the container if there is one.
        environment: variables for every host, which override the table's (docs/environment.md) and the recipe's.
        ports: ports of the run.
        join_seconds: time within which all hosts must join.
        socket_filter: whether only the run's hosts, and on them only its user and root, can reach its ports
            (SECURITY.md).
    """

    stack: Stack
    image: Image | None = None
    project: Absolute | None = None
    python: Text | None = None
    ssh: Ssh = Ssh()
    hosts: Annotated[list[Host], Field(min_length=1)]
    mounts: list[Mount] = Field(default_factory=list)
    shared: list[Absolute] = Field(default_factory=list)
    environment: Variables = Field(default_factory=dict)
    ports: Ports = Ports()
    join_seconds: Annotated[int, Field(ge=1)] = 300
    socket_filter: bool = False

    def ssh_of(self, host: Host) -> Ssh:
        """Return the ssh settings of a host; its own override the inventory's."""
        return self.ssh.model_copy(update=host.ssh.model_dump(exclude_none=True))


def names(folder: Path = FOLDER) -> list[str]:
    """List the inventories that can be loaded by name."""
    return sorted(file.stem for file in folder.glob("*.yaml"))


def load(name: str, folder: Path = FOLDER) -> Inventory:
    """Load and check the inventory called `name`, or in the file `name` if that ends in .yaml.

    Raises:
        LaunchError: the inventory does not exist, or is wrong; each line names the file and what to change.
    """
    file = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not os.path.isfile(file):
        raise LaunchError(f"no inventory {name!r}: give the path of a .yaml file; {nearest(name, names(folder))}")
    try:
        return checked(file, read_yaml(file), Inventory, problems)
    except BadDocument as error:
        raise LaunchError(str(error)) from error


def this_machine(stack: str) -> Inventory:
    """Return the inventory of this machine, with this interpreter."""
    return Inventory(stack=stack, project=str(ROOT), python=sys.executable, hosts=[Host(address="127.0.0.1")])


def problems(inventory: Inventory) -> Iterator[str]:
    """Yield the problems of an inventory whose fields are valid one by one."""
    hosts = [same(host.address) for host in inventory.hosts]
    for number, host in enumerate(hosts):
        found = ip(host)
        if host in hosts[:number]:
            yield f"hosts: {inventory.hosts[number].address} is listed twice: each host needs its own address"
        if len(hosts) > 1 and (host == "localhost" or (found and found.is_loopback)):
            yield f"hosts: {host} is each machine's own loopback: write the address that other hosts reach"
    if inventory.mounts and inventory.image is None:
        yield "mounts: need a container: name an image, or remove them"
