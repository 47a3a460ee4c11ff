"""What an inventory file may say: its fields, their types and their values. What goes together is in __init__.py.

A host is named by an IP address that one machine can have, or by a host name.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator

from launch import variables
from launch.recipes.fields import MOST_DEVICES, Fields, Stack

LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
NAME = re.compile(rf"{LABEL}(?:\.{LABEL})*\.?")
NUMBERS = re.compile(r"[0-9.]+|0x[0-9A-Fa-f]+")  # what only an IPv4 address, or a part of one, looks like
LONGEST = 253  # characters of a host's name
LOOPBACK = ("localhost", "ip6-localhost", "ip6-loopback")
Port = Annotated[int, Field(ge=1, le=65535)]
RANGE = re.compile(r"([1-9][0-9]{0,4})-([1-9][0-9]{0,4})")
IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]{0,254}")  # of those that Docker takes, the ones that are no option
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?")


def address(value: str) -> str:
    """The address, if a host can have it.

    Raises:
        ValueError: why none can, and what to write.
    """
    if "@" in value:
        user, _, host = value.rpartition("@")
        name, _, port = host.rpartition(":")
        login = f"user: {user or '..'}"
        if name and port.isdecimal() and ip(host) is None:
            host, login = name.strip("[]"), f"{login}, port: {port}"
        raise ValueError(f"an address alone is needed: write address: {host or '..'}, and ssh: {{{login}}}")
    found = ip(value)
    if found is None:
        host, colon, port = value.rpartition(":")
        if colon and port.isdecimal() and (NAME.fullmatch(host) or ip(host.strip("[]"))):
            raise ValueError(
                f"an address alone is needed: write address: {host.strip('[]')}, and ssh: {{port: {port}}}"
            )
        if NUMBERS.fullmatch(value) or not NAME.fullmatch(value) or len(value) > LONGEST:
            raise ValueError("an IPv4 or IPv6 address, or a host's name is needed")
    elif found.is_unspecified or found.is_multicast or found == ip("255.255.255.255"):
        raise ValueError("no single host has this address: write the one by which the other hosts reach it")
    return value


def ip(value: str) -> IPv4Address | IPv6Address | None:
    """The IP address that a text is, if it is one; ::ffff:192.0.2.1 is the IPv4 address in it."""
    try:
        found = ip_address(value)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def same(value: str) -> str:
    """One text for all ways to write an address: 2001:db8::1 and 2001:db8:0:0::1, NODE1 and node1."""
    found = ip(value)
    return str(found) if found is not None else value.lower().rstrip(".")


def is_loopback(value: str) -> bool:
    """Whether each machine has this address for itself."""
    found = ip(value)
    return found.is_loopback if found is not None else same(value).partition(".")[0] in LOOPBACK


def _port_range(value: str) -> str:
    found = RANGE.fullmatch(value)
    if not (found and int(found[1]) <= int(found[2]) <= 65535):
        raise ValueError("a range of ports is written LOW-HIGH, as 20000-29999")
    return value


def _hccl_ports(value: str) -> str:
    return value if value == "auto" else _port_range(value)


def _devices(value: Any) -> Any:
    if value == "auto" or (_whole(value) and 1 <= value <= MOST_DEVICES):
        return value
    if isinstance(value, list) and value and all(_whole(one) and one >= 0 for one in value) and not _repeats(value):
        return value
    raise ValueError("devices are auto, how many, or a list of their numbers, as [0, 1, 2, 3]")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _repeats(values: list[Any]) -> bool:
    return len(set(values)) < len(values)


def _absolute(value: str) -> str:
    if not value.startswith("/") or not value.strip("/") or CONTROL.search(value):
        raise ValueError("an absolute path is needed")
    return value.rstrip("/")


def _mount(value: str) -> str:
    parts = value.split(":")
    if len(parts) not in (2, 3) or not all(part.startswith("/") for part in parts[:2]) or parts[2:] not in ([], ["ro"]):
        raise ValueError("a mount is written /on/the/host:/in/the/container, with :ro behind it to be read only")
    if any(letter in value for letter in ',"') or CONTROL.search(value):
        raise ValueError("docker's --mount takes no comma, quote, line break or other control character in a path")
    return value


def _image(value: str) -> str:
    if not IMAGE.fullmatch(value):
        raise ValueError("the name of an image is needed, as ascend-quant:cpu or registry.example:5000/name:tag")
    return value


def _text(value: str) -> str:
    if not value.strip() or CONTROL.search(value):
        raise ValueError("a text without line breaks and other control characters is needed")
    return value


def _user(value: str) -> str:
    if not USER.fullmatch(value):
        raise ValueError("a user's name is needed: a letter or _, then letters, digits, _, . and -")
    return value


Text = Annotated[str, AfterValidator(_text)]
PortRange = Annotated[str, AfterValidator(_port_range)]
HcclPorts = Annotated[str, AfterValidator(_hccl_ports)]
Devices = Annotated[Literal["auto"] | int | list[int], PlainValidator(_devices)]
Absolute = Annotated[str, AfterValidator(_absolute)]
Mount = Annotated[str, AfterValidator(_mount)]
Variables = Annotated[dict[str, str], AfterValidator(variables.checked)]
Address = Annotated[str, AfterValidator(address)]
Image = Annotated[str, AfterValidator(_image)]
User = Annotated[str, AfterValidator(_user)]


class Ssh(Fields):
    """How ssh logs in; what is left out is ssh's own choice, from ~/.ssh/config."""

    user: User | None = None
    port: Port | None = None
    key: Text | None = None


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
        address: the IPv4 or IPv6 address, or the name, by which the other hosts reach it; the user is `ssh`'s.
        nic: the NIC that carries the address; auto finds it.
        devices: auto (all that are there), how many, or a list of their numbers.
        ssh: where it differs from the inventory's.
        environment: variables for this host, over the inventory's.
    """

    address: Address
    nic: Text = "auto"
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
        socket_filter: let only the run's hosts, and there its own user and root, reach its ports (SECURITY.md).
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
        """How to log in to a host: its own settings over the inventory's."""
        return self.ssh.model_copy(update=host.ssh.model_dump(exclude_none=True))
