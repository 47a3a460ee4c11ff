"""What only a host knows, asked for --dry-run: the NIC that carries its address, and its devices.

A host that does not answer is shown with words in place of the values, and with the reason.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from launch.errors import LaunchError
from launch.network import Wire
from launch.plan.fields import NodePlan, Plan

Ask = Callable[[Plan, int], dict[str, Any]]


@dataclass(frozen=True)
class Answer:
    """What a host says.

    Attributes:
        wire: how it is reached; words where it is not known.
        devices: their numbers, with commas; or words.
        silent: why the host was not asked; None if it has answered.
        problems: what would stop the run on this host.
    """

    wire: Wire
    devices: str
    silent: str | None = None
    problems: list[str] = field(default_factory=list)


def ask_all(plan: Plan, ask: Ask) -> list[Answer]:
    """The answers of all hosts, asked at the same time."""

    def one(node: NodePlan) -> Answer:
        try:
            return answer(node, ask(plan, node.host))
        except LaunchError as error:
            return unknown(node, " ".join(str(error).splitlines()))

    with ThreadPoolExecutor(len(plan.nodes)) as threads:
        return list(threads.map(one, plan.nodes))


def answer(node: NodePlan, facts: dict[str, Any]) -> Answer:
    """From what a host chose, and the problems that it found, to the values that it will have."""
    chosen, words = facts["chosen"], unknown(node, None)
    return Answer(
        Wire(**chosen["wire"]) if chosen["wire"] else words.wire,
        words.devices if chosen["devices"] is None else ",".join(map(str, chosen["devices"])),
        problems=facts["problems"],
    )


def unknown(node: NodePlan, silent: str | None) -> Answer:
    """Words for what is not known."""
    nic = f"<NIC that carries {node.address}>" if node.nic == "auto" else node.nic
    try:
        address = str(ip_address(node.address))
    except ValueError:
        address = f"<address of {node.address}>"
    wire = Wire(nic, address, "ipv6" if ":" in address else "ipv4")
    if isinstance(node.devices, list):
        return Answer(wire, ",".join(map(str, node.devices)), silent)
    return Answer(wire, f"<the first {node.devices} that are there>", silent)
