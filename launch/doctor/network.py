"""The networks of the host: the NIC of its address, the ports of a run, and the links of its NPUs.

hccn_tool prints `link status: UP`, `ipaddr:..` and `netmask:..`, according to the documentation of MindCluster's fault
diagnosis (hiascend.com, mindxdlFDUG021); this has not been run on hardware.
"""

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launch import LaunchError
from launch.doctor.checking import Finding, check, error, ok, warning
from launch.doctor.drivers import npu_numbers
from launch.doctor.facts import Facts, Link, Links, Network, Wanted
from launch.environment.network import choose, needed_ports, nics, taken_ports
from launch.recipes.stacks import pins
from launch.system.processes import ask
from launch.system.software import product

ADDRESSES = ("HCCL_IF_IP", "VLLM_HOST_IP")
NAMES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")  # comma-separated names of NICs
PATTERNS = ("HCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # prefixes of names; =NAME is exact, ^NAME excludes
TOOL = Path("/usr/local/Ascend/driver/tools/hccn_tool")
SECONDS = 10


def network(wanted: Wanted) -> Network:
    """Return the current state of the host's network."""
    found = nics()
    wire, problem = None, None
    if wanted.address is not None:
        try:
            chosen = choose(wanted.address, wanted.nic, found)
            wire = (chosen.nic, chosen.address)
        except LaunchError as reason:
            problem = str(reason)
    needed = needed_ports("head" if wanted.head else "worker", dict(wanted.ports)) if wanted.ports else {}
    return Network(found, wire, problem, tuple(taken_ports(needed)))


def links(kind: str, hosts: int, root: Path = Path("/")) -> Links:
    """Return the links between this host's NPUs and those of others; nothing for one host, or other devices."""
    if hosts == 1 or kind != "npu":
        return Links()
    config = (root / "etc" / "hccn.conf").is_file()
    tool = shutil.which("hccn_tool") or shutil.which(TOOL)
    if tool is None:
        return Links(problem=f"there is no hccn_tool on PATH, and no {TOOL}", config=config)
    with ThreadPoolExecutor(max_workers=8) as pool:
        return Links(tuple(pool.map(lambda device: link(tool, device), npu_numbers(root / "dev"))), config=config)


def link(tool: str, device: int) -> Link:
    """Query one NPU's link with hccn_tool."""
    state, address = (ask([tool, "-i", str(device), f"-{about}", "-g"], SECONDS) for about in ("link", "ip"))
    up = re.search(r"link status\s*:\s*(\w+)", state.output)
    ip = re.search(r"ipaddr\s*:\s*(\S+)", address.output)
    why = state.problem or state.output.strip()[:200] or "hccn_tool prints nothing"
    return Link(device, up[1] if up else why, ip[1] if ip else None)


@check("network.address")
def address(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    found = facts.network
    if found.problem:
        yield error(found.problem, "correct `address` or `nic` of this host in the inventory")
    elif found.wire:
        yield ok(f"{found.wire[0]} has address {found.wire[1]}")
    else:
        yield ok("; ".join(f"{name}: {', '.join(addresses)}" for name, addresses in found.nics.items()) or "no NIC")
    for name in (*ADDRESSES, *NAMES, *PATTERNS):
        value = facts.variables.get(name)
        if value is not None and not leads_somewhere(name, value, found):
            what = f"{name}={value} is neither an address nor a NIC of this host ({found.nics})"
            if name in wanted.environment:
                yield error(what, f"remove {name} from the inventory: the launcher sets it, from `address` there")
            else:  # with several hosts the launcher's value takes precedence, except on the starting host
                level = error if wanted.hosts == 1 else warning
                yield level(what, f"unset {name}, in ~/.bashrc too: the launcher sets it")


def leads_somewhere(name: str, value: str, found: Network) -> bool:
    """Return whether the value of a variable names an address or a NIC of this host."""
    if name in ADDRESSES:
        return any(value in addresses for addresses in found.nics.values())
    if name in NAMES:
        return set(value.split(",")) <= set(found.nics)
    words = tuple(value.lstrip("^=").split(","))
    exact, excludes = value.lstrip("^").startswith("="), value.startswith("^")
    return any((nic in words if exact else nic.startswith(words)) != excludes for nic in found.nics)


@check("network.ports")
def ports(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    for line in facts.network.taken:
        yield error(line, "end it if it is yours (./run.sh stop), or choose other `ports` in the inventory")
    if wanted.ports and not facts.network.taken:
        yield ok("the ports of Ray are free")


@check("network.links")
def between(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Check the links of NPUs between hosts; an A3's may be DOWN and without an address, since its dies use HCCS."""
    if wanted.hosts == 1 or pins(wanted.stack).devices != "npu" or not facts.devices.found:
        return
    found, a3 = facts.links, product(facts.devices.chip or "") == "A3"
    if found.problem:
        yield warning(f"the links were not checked: {found.problem}", "mount the driver's tools into the container")
        return
    down = [link for link in found.npus if link.state != "UP"]
    without = [str(link.device) for link in found.npus if link.address is None and not a3]
    if down:
        what = ", ".join(f"device {link.device}: {link.state}" for link in down)
        level = warning if a3 else error
        yield level(what, f"hccn_tool -i {down[0].device} -optical -g, and look at the cable and the switch's port")
    if without:
        what = f"no address: device {', '.join(without)}"
        yield error(what, f"hccn_tool -i {without[0]} -ip -s address .. netmask ..")
    if not found.config and not a3:
        yield error("there is no /etc/hccn.conf", "mount it from the host into the container")
    if not down and not without:
        yield ok(f"all {len(found.npus)} UP")
