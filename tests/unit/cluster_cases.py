"""Plans for tests: real ones of this project's code for this machine, with ports that no other test uses."""

import itertools
import os
import socket
import sys
import tempfile
from pathlib import Path

from launch.cluster.inventory import Inventory
from launch.plan import Job, NodePlan, Plan

PROJECT = Path(__file__).parents[2]
NUMBERS = itertools.count()
OUT = tempfile.TemporaryDirectory(prefix="ascend-quant-tests-")  # removed at the end of this process
VALUES = {"task_queue": "1", "expansion": "", "hccl_host": "60000-60050", "hccl_npu": "61000-61050"}


def new_run() -> str:
    """A run id of this test process."""
    return f"t{os.getpid()}-{next(NUMBERS)}"


def free_ports(first: int) -> dict[str, int | str]:
    """Ports for a run: a range of a hundred that nobody listens on, from `first` on, outside the ephemeral ports."""
    for low in range(first, 30000, 100):
        taken = [port for port in range(low, low + 40) if listens(port)]
        if not taken:
            return {"ray": low, "dashboard": low + 1, "workers": f"{low + 2}-{low + 99}"}
    raise RuntimeError("no hundred free ports")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def node_plan(run: str | None = None, **changes: object) -> NodePlan:
    """The head of a run on this machine."""
    run = run or new_run()
    plan = {
        "run": run,
        "role": "head",
        "stack": "cpu",
        "host": 0,
        "address": "127.0.0.1",
        "nic": "auto",
        "devices": 1,
        "host_gib": 2,
        "head": "127.0.0.1",
        "out": f"{OUT.name}/{run}",
        "ports": {"ray": 21000, "dashboard": 21001, "workers": "21002-21099"},
        "members": ["127.0.0.1"],
        "values": VALUES,
        "layers": [],
        "join_seconds": 120,
        "job": Job(["-c", "print('hello')"]),
    }
    return NodePlan(**plan | changes)


def this_machine() -> Inventory:
    """An inventory of this machine alone, with this interpreter and these sources."""
    host = {"address": "127.0.0.1"}
    where = {"python": sys.executable, "project": str(PROJECT)}
    return Inventory.model_validate({"stack": "cpu", "hosts": [host], **where})


def plan_of(node: NodePlan) -> Plan:
    """The plan of a run on this machine alone."""
    return Plan(
        run=node.run,
        recipe="test",
        inventory=this_machine(),
        nodes=[node],
        local=[True],
    )
