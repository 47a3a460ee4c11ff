"""The network of the host: the NIC of its address, its own name, the ports of a run, and the variables about it."""

import socket
from collections.abc import Iterator
from ipaddress import ip_address

from launch.doctor.checking import Said, check, error, ok, warning
from launch.doctor.facts import Facts, Network
from launch.doctor.requirements import Wanted
from launch.errors import LaunchError
from launch.network import choose, nics
from launch.nodes import ports as run_ports
from launch.stacks import pins

ADDRESSES = ("HCCL_IF_IP", "VLLM_HOST_IP")
EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")  # a name, or several with commas
PATTERNS = ("HCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # beginnings of names; =NAME is exact, ^NAME excludes


def network(wanted: Wanted) -> Network:
    """What the host's network looks like now."""
    found = nics()
    wire, problem = None, None
    if wanted.address is not None:
        try:
            chosen = choose(wanted.address, wanted.nic, found)
            wire = (chosen.nic, chosen.address)
        except LaunchError as reason:
            problem = str(reason)
    return Network(found, wire, problem, own_name(), tuple(run_ports.taken(needed_ports(wanted))))


def own_name() -> tuple[str, tuple[str, ...]]:
    """The host's name, and the addresses that it leads to."""
    name = socket.gethostname()
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return name, ()
    return name, tuple(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in entries))


def needed_ports(wanted: Wanted) -> dict[int, str]:
    """The ports that must be free here, and what for: Ray's, and on NPUs those of HCCL on the host's NIC."""
    needed = run_ports.needed("head" if wanted.head else "worker", dict(wanted.ports))
    hccl = str(wanted.ports["hccl_host"])
    if pins(wanted.stack).devices == "npu" and hccl != "auto":
        low, high = map(int, hccl.split("-"))
        needed |= dict.fromkeys(range(low, high + 1), "hccl_host")
    return needed


@check("network.address")
def address(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    found = facts.network
    if found.problem:
        yield error(found.problem, "correct `address` or `nic` of this host in the inventory")
    elif found.wire:
        yield ok(f"{found.wire[0]} carries {found.wire[1]}")
    else:
        yield ok("; ".join(f"{name}: {', '.join(addresses)}" for name, addresses in found.nics.items()) or "no NIC")


@check("network.name")
def name(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    own, leads_to = facts.network.name
    if not leads_to:
        yield warning(f"the host's own name {own} leads nowhere", f"add it to /etc/hosts: ADDRESS {own}")
    elif wanted.hosts > 1 and all(ip_address(one).is_loopback for one in leads_to):
        what = f"the host's own name {own} leads to {leads_to[0]}, which no other host reaches"
        yield warning(what, f"in /etc/hosts: {wanted.address or 'ADDRESS'} {own}; runs of ./run.sh train do without")


@check("network.ports")
def ports(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    for line in facts.network.taken:
        yield error(line, "end it if it is yours (./run.sh stop), or choose other `ports` in the inventory")
    if not facts.network.taken:
        yield ok("the ports of Ray and HCCL are free")


@check("network.variables")
def variables(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    names = list(facts.network.nics)
    here = [address for addresses in facts.network.nics.values() for address in addresses]
    for name in ADDRESSES:
        if (value := facts.variables.get(name)) is not None:
            yield _judged(name, value, wanted, value in here, f"is no address of this host ({', '.join(here)})")
    for name in (*EXACT, *PATTERNS):
        if (value := facts.variables.get(name)) is not None:
            exact = name in EXACT
            fits = set(value.split(",")) <= set(names) if exact else any(_matches(value, one) for one in names)
            yield _judged(name, value, wanted, fits, f"names no NIC of this host ({', '.join(names)})")


def _judged(name: str, value: str, wanted: Wanted, fits: bool, why: str) -> Said:
    """A wrong value is fatal where it wins: the inventory's, or that of the shell that starts a run here."""
    if fits:
        return ok(f"{name}={value}")
    if name in wanted.environment:
        return error(f"{name}={value} {why}", f"take {name} out of the inventory: the launcher sets it")
    if wanted.hosts == 1:
        return error(f"{name}={value} {why}", f"unset {name}, in ~/.bashrc too: the launcher sets it")
    return warning(f"{name}={value} {why}", f"unset {name} in ~/.bashrc; over ssh the launcher's own value wins")


def _matches(pattern: str, nic: str) -> bool:
    """Whether HCCL and NCCL take a NIC by this value."""
    words = pattern.lstrip("^=").split(",")
    if pattern.startswith("^"):
        return not any(nic.startswith(word.lstrip("=")) for word in words)
    return nic in words if pattern.startswith("=") else any(nic.startswith(word) for word in words)
