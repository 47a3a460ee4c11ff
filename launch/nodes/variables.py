"""The environment of what a node starts: its own, wired for this host, and marked with the run's id."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from launch.environment.merge import node_environment, overruled
from launch.environment.users import OTHER_CLUSTERS
from launch.nodes import ports
from launch.nodes.checks import Checked
from launch.plan.fields import NodePlan
from launch.processes import MARK
from launch.root import with_root


def variables(plan: NodePlan, checked: Checked, token: str, own: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The whole environment of Ray on this host, and so of all that it starts here; and what is to be said of it."""
    values = {
        **plan.values,
        "address": checked.wire.address,
        "nic": checked.wire.nic,
        "family": checked.wire.family,
        "devices": ",".join(map(str, checked.devices)),
    }
    settings = node_environment(plan.stack, values, plan.layers)
    whole = {
        **{name: value for name, value in own.items() if name not in OTHER_CLUSTERS},
        **{setting.name: setting.value for setting in settings if setting.name not in OTHER_CLUSTERS},
        **ports.metrics_ports(plan.ports),
        **this_python(own),
        **authentication(token),
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # Ray would wait 30 s for tasks that are to end with it
        "SPT_NOENV": "1",  # setproctitle then leaves /proc/PID/environ as it is, where the mark is read
        MARK: plan.run,
    }
    return whole, overruled(settings, own)


def authentication(token: str) -> dict[str, str]:
    """Ray asks everybody for the token (2.52 and newer): else whoever reaches its dashboard runs code here."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def this_python(own: Mapping[str, str]) -> dict[str, str]:
    """`python` in a job is this interpreter, and imports what is beside these sources."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)]),
        "PYTHONPATH": with_root(own),
    }
