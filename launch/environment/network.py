"""The network interface (NIC) of a host, for NCCL_SOCKET_IFNAME and HCCL_SOCKET_IFNAME, and the ports of its Ray.

This runs on the host itself; every error lists the existing NICs.

A host may have several NICs, and a NIC several addresses: the inventory's address determines the NIC. Names are
resolved on the host. Debian maps a host's own name to 127.0.1.1, which other hosts cannot reach.

All ports of Ray are set explicitly, so that it does not collide with other Ray clusters: the daemons use the first
ports of the inventory's range `workers`, the workers the others.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

import psutil

from launch import LaunchError

Found = Mapping[str, list[str]]
DAEMONS = (
    "node-manager-port",
    "object-manager-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
    "ray-client-server-port",
)
METRICS = ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")  # Ray reads these from the environment
RESERVED = 20


@dataclass(frozen=True)
class Wire:
    """The network interface by which others reach a host, its IP address, and `ipv4` or `ipv6`."""

    nic: str
    address: str
    family: str


def nics() -> dict[str, list[str]]:
    """Return the network interfaces that are up, and the addresses that each carries, without link-local ones."""
    states = psutil.net_if_stats()
    found = {}
    for name, entries in psutil.net_if_addrs().items():
        state = states.get(name.split(":")[0])  # eth0:1 is a labelled address of eth0
        addresses = [_ip(entry.address) for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
        if state is not None and state.isup and (routed := [str(one) for one in addresses if not one.is_link_local]):
            found[name] = routed
    return found


def resolve(address: str) -> list[str]:
    """Resolve a name to IP addresses, or return the address itself.

    Raises:
        LaunchError: the name is unknown, or resolves only to loopback.
    """
    try:
        return [str(ip_address(address))]
    except ValueError:
        ips = _looked_up(address)
    outer = [ip for ip in ips if not ip.is_loopback]
    if not outer and address != "localhost":
        raise LaunchError(
            f"{address} resolves to the loopback address {ips[0]} on this machine (Debian's /etc/hosts maps "
            f"the host name so): write its IP address in the inventory; NICs here: {described(nics())}"
        )
    return [str(ip) for ip in outer or ips]


def choose(address: str, nic: str = "auto", found: Found | None = None) -> Wire:
    """Choose the NIC of this host that has `address` (an IP address or a name); `found` is the result of `nics()`.

    Raises:
        LaunchError: no NIC has the address, or a NIC other than `nic` does.
    """
    found = nics() if found is None else found
    ips = resolve(address)
    carriers = [(name, ip) for ip in ips for name, carried in found.items() if ip in carried]
    said = address if ips == [address] else f"{address} ({', '.join(ips)})"
    if nic not in ("auto", *found):
        raise LaunchError(
            f"NIC {nic} does not exist or is down; NICs here: {described(found)}. Write one of them, or auto"
        )
    if not carriers:
        raise LaunchError(
            f"no NIC has address {said}; NICs here: {described(found)}. Correct the address in the inventory"
        )
    chosen = [(name, ip) for name, ip in carriers if nic in ("auto", name)]
    if not chosen:
        there = carriers[0][0]
        raise LaunchError(f"NIC {nic} does not have address {said}, but {there} does. Write nic: {there}, or auto")
    name, ip = chosen[0]
    return Wire(name, ip, "ipv6" if ip_address(ip).version == 6 else "ipv4")


def is_here(address: str, found: Found | None = None) -> bool:
    """Return whether an address or name is this machine's; names in ~/.ssh/config are not resolved."""
    carried = {ip for ips in (nics() if found is None else found).values() for ip in ips}
    try:
        ips = _looked_up(address)
    except LaunchError:
        return False
    return any(ip.is_loopback or str(ip) in carried for ip in ips)


def described(found: Found) -> str:
    """Describe the NICs and their addresses in one line, loopback last."""
    outer = [f"{name} with {' and '.join(ips)}" for name, ips in found.items() if not _ip(ips[0]).is_loopback]
    return ", ".join(outer) or "no NIC with an address except loopback"


def _looked_up(name: str) -> list[IPv4Address | IPv6Address]:
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LaunchError(
            f"{name} cannot be resolved on this machine ({error.strerror}): write its IP address in the "
            "inventory, or add the name to /etc/hosts"
        ) from error
    return list(dict.fromkeys(_ip(entry[4][0]) for entry in entries))


def _ip(text: str) -> IPv4Address | IPv6Address:
    return ip_address(text.split("%")[0])


def daemon_ports(ports: dict[str, int | str]) -> dict[str, int]:
    """Return the port of each daemon, by the option of `ray start`."""
    low, _ = worker_range(ports)
    return {name: low + number for number, name in enumerate(DAEMONS)}


def metrics_ports(ports: dict[str, int | str]) -> dict[str, str]:
    """Return the variables for Ray's own metrics, whose default ports are 44217 and 44227 on every host."""
    low, _ = worker_range(ports)
    return {name: str(low + len(DAEMONS) + number) for number, name in enumerate(METRICS)}


def worker_range(ports: dict[str, int | str]) -> tuple[int, int]:
    """Return the lowest and the highest port of the range."""
    low, _, high = str(ports["workers"]).partition("-")
    return int(low), int(high)


def needed_ports(role: str, ports: dict[str, int | str]) -> dict[int, str]:
    """Return the ports that must be free on a host with this role, with their purpose."""
    daemons = {port: name.removesuffix("-port") for name, port in daemon_ports(ports).items()}
    if role == "worker":
        return {port: name for port, name in daemons.items() if name != "ray-client-server"}
    return {int(ports["ray"]): "ray", int(ports["dashboard"]): "dashboard", **daemons}


def taken_ports(ports: dict[int, str]) -> list[str]:
    """Return a line for each of these ports on which a process listens, with the process."""
    listeners = {}
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port in ports:
            listeners[connection.laddr.port] = connection.pid
    return [f"port {port} ({ports[port]}) is in use by {_process(pid)}" for port, pid in sorted(listeners.items())]


def _process(pid: int | None) -> str:
    """Describe a process: its id, user, and the beginning of its command."""
    if pid is None:
        return "a process that this user cannot see (another user's, or in another container)"
    try:
        process = psutil.Process(pid)
        command = " ".join(process.cmdline()) or process.name()
        return f"process {pid} of {process.username()}: {command[:80]}"
    except psutil.Error:
        return f"process {pid}"
