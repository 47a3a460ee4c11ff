"""What Ray's state API says of a run, asked on the head: who has joined, and whose Ray has died."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch import network
from launch.errors import LaunchError
from launch.plan import NodePlan

ANSWER_SECONDS = 10


@dataclass
class Members:
    """The members of a run; hosts are their numbers in the plan."""

    addresses: list[list[str]]
    joined: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)

    def look(self, nodes: list[Any]) -> bool:
        """Take in what Ray says; true if anything is new. A member that died stays lost."""
        before = set(self.joined), dict(self.lost)
        for node in nodes:
            host = self.number(node.node_ip)
            if host is None:
                continue
            if node.state == "ALIVE" and host not in self.lost:
                self.joined.add(host)
            elif node.state == "DEAD" and host in self.joined:
                self.joined.discard(host)
                self.lost[host] = node.state_message or "Ray gives no reason"
        return (self.joined, self.lost) != before

    def number(self, address: str) -> int | None:
        """The host that has an address. A run on one host has no others: Ray replaces a loopback address."""
        if len(self.addresses) == 1:
            return 0
        return next((host for host, known in enumerate(self.addresses) if address in known), None)


def of_plan(plan: NodePlan) -> Members:
    """The members that a plan wants; a name that leads nowhere is an error that says which host it is."""
    addresses = []
    for member in plan.members:
        try:
            addresses.append(network.resolve(member))
        except LaunchError as error:
            raise LaunchError(f"the head looks for {member}: {error}") from None
    return Members(addresses)


def nodes(dashboard: str) -> list[Any]:
    """Ray's nodes, alive and dead. Raises RayStateApiException or requests' errors when it does not answer."""
    from ray.util.state import list_nodes

    return list_nodes(address=dashboard, timeout=ANSWER_SECONDS, raise_on_missing_output=False)


def kernel_kills() -> int:
    """How many processes this host's kernel has ended for want of memory since it started; 0 if it does not say."""
    words = Path("/proc/vmstat").read_text().split()
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
