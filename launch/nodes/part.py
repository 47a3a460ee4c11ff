"""A host's part of a run: what it was told, what was found here, and the Ray that it started."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.nodes.checks import Checked
from launch.nodes.events import Emit
from launch.nodes.orders import Orders
from launch.nodes.ray_node import RayNode, start_command
from launch.plan.fields import NodePlan


@dataclass
class Part:
    """One attempt on one host.

    Attributes:
        environment: of Ray, and so of everything that runs here.
        meeting: the file by which hosts meet that no control host reaches (--on-this-node); None otherwise.
        deadline: of joining, in time.monotonic().
        kernel_kills: how many processes the kernel had ended on this host for want of memory when the part began.
        ray: this host's, once it was started.
    """

    plan: NodePlan
    facts: dict[str, Any]
    checked: Checked
    environment: dict[str, str]
    emit: Emit
    orders: Orders
    meeting: Path | None
    deadline: float
    kernel_kills: int
    ray: RayNode | None = None

    def start_ray(self, plan: NodePlan, port: int) -> None:
        """Start Ray as `plan` says, and wait until it listens on one of its ports."""
        address = self.checked.wire.address
        command = start_command(plan, self.checked.wire, len(self.checked.devices))
        self.ray = RayNode(plan, command, self.environment, self.emit)
        self.ray.wait_for_port(address, port, self.orders.ended, self.deadline)
        if not self.orders.ended.is_set():
            self.emit("started", pid=self.ray.process.pid, address=address)
