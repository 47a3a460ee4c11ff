"""Which hosts are missing, and why: every reason that is known, the most telling one first."""

from collections.abc import Sequence

from launch.cluster.hosts import HostState
from launch.nodes.ports import worker_range
from launch.nodes.versions import skew

Missing = list[tuple[str, str]]  # the address, and why


def differing(hosts: Sequence[HostState]) -> Missing:
    """Hosts whose software or clock is not the head's or the control host's; compared before any Ray is started."""
    head, found = hosts[0], []
    for host in hosts:
        if host.facts is None:
            continue
        if host is not head and head.facts and (lines := skew(head.facts["versions"], host.facts["versions"])):
            found.append((host.address, f"version skew: {'; '.join(lines)}"))
        if wrong := host.clock.wrong():
            found.append((host.address, wrong))
    return found


def missing(hosts: Sequence[HostState], ports: dict[str, int | str]) -> Missing:
    """Hosts that have not joined."""
    return [(host.address, why(host, hosts[0], ports)) for host in hosts if not host.joined]


def why(host: HostState, head: HostState, ports: dict[str, int | str]) -> str:
    """The reason, as far as it can be known from here."""
    low, high = worker_range(ports)
    if host.problem or host.passing:
        return host.problem or host.passing
    if host.channel is None:
        return "has not joined: run the same command there (--on-this-node)"
    if host.facts is None:
        return "connected, but its checks have not ended"
    if not host.started:
        return f"its checks passed, but its Ray is not up: {host.last_line or 'no message'}"
    if host is head:
        return f"its Ray runs, but does not count itself as alive: {host.last_line}"
    return f"its Ray runs, but has not joined the head's: are ports {ports['ray']} and {low}-{high} open between them?"
