"""What an inventory file may say: its fields, their types and their values. What goes together is in rules.py."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator

from launch.environment.users import OTHER_CLUSTERS
from launch.recipes.fields import Fields, Stack

Port = Annotated[int, Field(ge=1, le=65535)]
NAME = re.compile(r"[A-Za-z_]\w*")


def _port_range(value: str) -> str:
    low, dash, high = value.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high) <= 65535):
        raise ValueError("a range of ports is written LOW-HIGH, as 20000-29999")
    return value


def _hccl_ports(value: str) -> str:
    return value if value == "auto" else _port_range(value)


def _devices(value: Any) -> Any:
    if value == "auto" or (_whole(value) and value >= 1):
        return value
    if isinstance(value, list) and value and all(_whole(one) and one >= 0 for one in value) and not _repeats(value):
        return value
    raise ValueError("devices are auto, how many, or a list of their numbers, as [0, 1, 2, 3]")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _repeats(values: list[Any]) -> bool:
    return len(set(values)) < len(values)


def _absolute(value: str) -> str:
    if not value.startswith("/") or value == "/":
        raise ValueError("an absolute path is needed")
    return value.rstrip("/")


def _mount(value: str) -> str:
    parts = value.split(":")
    if len(parts) not in (2, 3) or not all(part.startswith("/") for part in parts[:2]) or parts[2:] not in ([], ["ro"]):
        raise ValueError("a mount is written /on/the/host:/in/the/container, with :ro behind it to be read only")
    return value


def _variables(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if name in OTHER_CLUSTERS:
            raise ValueError(f"{name} would tie this run's processes to another Ray cluster: leave it out")
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an environment variable")
    return value


PortRange = Annotated[str, AfterValidator(_port_range)]
HcclPorts = Annotated[str, AfterValidator(_hccl_ports)]
Devices = Annotated[Literal["auto"] | int | list[int], PlainValidator(_devices)]
Absolute = Annotated[str, AfterValidator(_absolute)]
Mount = Annotated[str, AfterValidator(_mount)]
Variables = Annotated[dict[str, str], AfterValidator(_variables)]
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9:.%_-]+$")]


class Ssh(Fields):
    """How ssh logs in; what is left out is ssh's own choice, from ~/.ssh/config."""

    user: str | None = None
    port: Port | None = None
    key: str | None = None


class Ports(Fields):
    """The ports of a run, the same on every host.

    Attributes:
        ray: Ray's head.
        dashboard: Ray's dashboard and job API, on the head.
        workers: a range for Ray's workers and its daemons.
        hccl_host, hccl_npu: ranges for HCCL, on the host's NIC and on those of the devices; auto: any.
    """

    ray: Port = 6766
    dashboard: Port = 8260
    workers: PortRange = "20000-29999"
    hccl_host: HcclPorts = "60000-60050"
    hccl_npu: HcclPorts = "61000-61050"


class Host(Fields):
    """A machine.

    Attributes:
        address: the IPv4 or IPv6 address, or the name, by which the other hosts reach it.
        nic: the NIC that carries the address; auto finds it.
        devices: auto (all that are there), how many, or a list of their numbers.
        ssh: where it differs from the inventory's.
        environment: variables for this host, over the inventory's.
    """

    address: Address
    nic: str = "auto"
    devices: Devices = "auto"
    ssh: Ssh = Ssh()
    environment: Variables = Field(default_factory=dict)


class Inventory(Fields):
    """The machines of a run; the first host is the head.

    Attributes:
        stack: the pinned software that is on them.
        image: a container image to run in; without one the run is on the hosts themselves.
        project: the folder of the checkout on the hosts.  None: this checkout's path, or the image's own
        python: the interpreter there, from `project`.  None: .venv/bin/python, or the image's python
        mounts: folders for the container, /on/the/host:/in/the/container[:ro].
        shared: folders that are the same storage on every host, by the paths that the run sees.
        environment: variables for every host, over the table's (docs/environment.md) and the recipe's.
        join_seconds: how long hosts may take to join.
    """

    stack: Stack
    image: str | None = None
    project: Absolute | None = None
    python: str | None = None
    ssh: Ssh = Ssh()
    hosts: Annotated[list[Host], Field(min_length=1)]
    mounts: list[Mount] = Field(default_factory=list)
    shared: list[Absolute] = Field(default_factory=list)
    environment: Variables = Field(default_factory=dict)
    ports: Ports = Ports()
    join_seconds: Annotated[int, Field(ge=1)] = 300

    def ssh_of(self, host: Host) -> Ssh:
        """How to log in to a host: its own settings over the inventory's."""
        return self.ssh.model_copy(update=host.ssh.model_dump(exclude_none=True))
