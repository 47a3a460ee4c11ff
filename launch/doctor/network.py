"""Checks of the host's networks: the NIC of its address, a run's ports, the links of its NPUs, the way to other hosts.

hccn_tool prints `link status: UP`, `ipaddr:..` and `netmask:..`, according to the documentation of MindCluster's fault
diagnosis (hiascend.com, mindxdlFDUG021); this has not been run on hardware.
"""

import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

from launch import LaunchError
from launch.doctor.checking import Finding, error, warning
from launch.doctor.facts import Facts
from launch.environment.network import choose, needed_ports, taken_ports
from launch.system.processes import ask

ADDRESSES = ("HCCL_IF_IP", "VLLM_HOST_IP")
NAMES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")  # comma-separated names of NICs
PATTERNS = ("HCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # prefixes of names; =NAME is exact, ^NAME excludes
TOOL = "/usr/local/Ascend/driver/tools/hccn_tool"
HCCN_CONFIG = Path("/etc/hccn.conf")
SECONDS, CONNECT_SECONDS = 10, 3
AT_ONCE = 32


def address(facts: Facts) -> Iterator[Finding]:
    """Check that a NIC has the inventory's address, and that variables name NICs of this host (vllm issue 5094)."""
    wanted, nics = facts.wanted, facts.nics
    if wanted.address is not None:
        try:
            choose(wanted.address, wanted.nic, nics)
        except LaunchError as reason:
            yield error(str(reason), "correct `address` or `nic` of this host in the inventory")
    for name in (*ADDRESSES, *NAMES, *PATTERNS):
        value = facts.variables.get(name)
        if value and not leads_somewhere(name, value, nics):
            what = f"{name}={value} is neither an address nor a NIC of this host ({nics})"
            if name in wanted.environment:
                fix = f"remove {name} from the inventory and unset it: the launcher sets it, from `address` there"
                yield error(what, fix)
            else:  # on a host of an inventory the launcher's value takes precedence
                level = error if wanted.address is None else warning
                yield level(what, f"unset {name}, in ~/.bashrc too: the launcher sets it")


def leads_somewhere(name: str, value: str, nics: Mapping[str, list[str]]) -> bool:
    """Return whether the value of a variable names an address or a NIC of this host."""
    if name in ADDRESSES:
        return any(value in addresses for addresses in nics.values())
    if name in NAMES:
        return set(value.split(",")) <= set(nics)
    words = tuple(value.lstrip("^=").split(","))
    exact, excludes = value.lstrip("^").startswith("="), value.startswith("^")
    return any((nic in words if exact else nic.startswith(words)) != excludes for nic in nics)


def ports(facts: Facts) -> Iterator[Finding]:
    """Check that Ray's ports are free (ray issue 14098)."""
    wanted = facts.wanted
    if not wanted.ports:
        return
    for line in taken_ports(needed_ports(wanted.role, wanted.ports)):
        yield error(line, "end it if it is yours (./run.sh stop), or choose other `ports` in the inventory")


def links(facts: Facts) -> Iterator[Finding]:
    """Check the links of NPUs between hosts (vllm-ascend issue 5461).

    An A3's may be DOWN and without an address, since its dies use HCCS.
    """
    numbers, a3 = facts.devices.numbers, facts.devices.product == "A3"
    if facts.wanted.hosts == 1 or facts.kind != "npu" or not numbers:
        return
    tool = shutil.which("hccn_tool") or shutil.which(TOOL)
    if tool is None:
        what = f"the links were not checked: there is no hccn_tool on PATH, and no {TOOL}"
        yield warning(what, "mount the driver's tools into the container")
        return
    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(link, repeat(tool), numbers))
    for number, (state, ip) in zip(numbers, answers, strict=True):
        if state != "UP":
            level = warning if a3 else error
            fix = f"hccn_tool -i {number} -optical -g, and look at the cable and the switch's port"
            yield level(f"device {number}: {state}", fix)
        if ip is None and not a3:
            yield error(f"device {number} has no address", f"hccn_tool -i {number} -ip -s address .. netmask ..")
    if not HCCN_CONFIG.is_file() and not a3:
        yield error(f"there is no {HCCN_CONFIG}", "mount it from the host into the container")


def link(tool: str, device: int) -> tuple[str, str | None]:
    """Return the state of an NPU's port (UP, DOWN, or what the tool says instead) and its address, if it has one."""
    state, address = (ask([tool, "-i", str(device), f"-{about}", "-g"], SECONDS) for about in ("link", "ip"))
    up = re.search(r"link status\s*:\s*(\w+)", state.output)
    ip = re.search(r"ipaddr\s*:\s*(\S+)", address.output)
    why = state.problem or state.output.strip()[:200] or "hccn_tool prints nothing"
    return up[1] if up else why, ip[1] if ip else None


def reach(facts: Facts) -> Iterator[Finding]:
    """Check that this host can connect to the others (ray issue 7632)."""
    targets = facts.wanted.targets
    with ThreadPoolExecutor(AT_ONCE) as pool:
        reasons = list(pool.map(why_unreached, targets))
    for (end, port), why in zip(targets, reasons, strict=True):
        if why:
            look = f"on {end}: firewall-cmd --list-all, iptables -L"
            fix = f"open all ports between the hosts ({look}), and check the route"
            yield error(f"{end} is not reached on port {port}: {why}", fix)


def why_unreached(target: tuple[str, int]) -> str | None:
    """Return None if a host answers on a port, even by refusing; otherwise why not: a firewall, or no route."""
    try:
        with socket.create_connection(target, timeout=CONNECT_SECONDS):
            return None
    except ConnectionRefusedError:
        return None
    except TimeoutError:
        return f"no answer within {CONNECT_SECONDS} s"
    except OSError as failure:
        return failure.strerror or str(failure)
