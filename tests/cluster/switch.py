"""What the hosts' network interfaces are plugged into: a bridge in a network namespace of its own."""

import os
import subprocess
import time
from itertools import count

from cluster.namespaces import ip

BRIDGE = "bridge"


class Switch:
    """One layer-2 network. Its cables vanish with the host at their other end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["setpriv", "--pdeathsig=KILL", "unshare", "--net", "sleep", "infinity"])
        self.pid = self._process.pid
        while os.readlink(f"/proc/{self.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        ip(self.pid, "link", "add", BRIDGE, "type", "bridge")
        ip(self.pid, "link", "set", BRIDGE, "up")
        self._cables = (f"cable{number}" for number in count())

    def plug_in(self, pid: int, nic: str, mac_address: str) -> str:
        """Give the network namespace of a process an interface of this name; returns the cable's name."""
        cable = next(self._cables)
        peer = ["peer", "name", nic, "address", mac_address, "netns", str(pid)]
        ip(self.pid, "link", "add", cable, "type", "veth", *peer)
        ip(self.pid, "link", "set", cable, "master", BRIDGE, "up")
        return cable

    def set_cable(self, cable: str, state: str) -> None:
        """`up` or `down`: the host at its end keeps its interface and address, but hears nobody."""
        ip(self.pid, "link", "set", cable, state)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
