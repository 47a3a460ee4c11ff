"""What this host is: its name, clock, NICs, devices, versions, and room on its disk, in memory and in /dev/shm."""

import shutil
import socket
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from launch import network
from launch.nodes import devices
from launch.nodes.versions import versions


def gather(stack: str, temp_dir: str) -> dict[str, Any]:
    """The facts that the control host compares and shows; sizes in bytes.

    Raises:
        LaunchError: a tool of the host does not answer.
    """
    return {
        "name": socket.gethostname(),
        "clock": time.time(),
        "nics": network.nics(),
        "devices": asdict(devices.found(stack)),
        "versions": versions(),
        "memory": psutil.virtual_memory().total,
        "shm": shutil.disk_usage("/dev/shm").total,
        "disk_free": shutil.disk_usage(Path(temp_dir).parent).free,
        "cores": psutil.cpu_count(),
    }
