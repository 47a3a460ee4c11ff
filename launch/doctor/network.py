"""The networks of the host: the NIC of its address, the ports of a run, and the links of its devices.

hccn_tool answers `link status: UP`, `ipaddr:..` and `netmask:..`; from the pages on the check before a training of
MindCluster's fault diagnosis (hiascend.com, mindxdlFDUG021); not run on hardware by this project. Without RDMA, NCCL
takes TCP, and says so only in its log.
"""

import ctypes
import re
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launch import LaunchError
from launch.doctor.checking import Finding, check, error, ok, warning
from launch.doctor.drivers import npu_numbers
from launch.doctor.facts import Facts, Link, Links, Network, Wanted
from launch.network import choose, needed_ports, nics, taken_ports
from launch.processes import ask
from launch.software import product
from launch.stacks import pins

ADDRESSES = ("HCCL_IF_IP", "VLLM_HOST_IP")
EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")  # a name, or several with commas
PATTERNS = ("HCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # beginnings of names; =NAME is exact, ^NAME excludes
TOOL = Path("/usr/local/Ascend/driver/tools/hccn_tool")
SECONDS = 10
LIBRARY = "libibverbs.so.1"


def network(wanted: Wanted) -> Network:
    """Return the host's network as it is now."""
    found = nics()
    wire, problem = None, None
    if wanted.address is not None:
        try:
            chosen = choose(wanted.address, wanted.nic, found)
            wire = (chosen.nic, chosen.address)
        except LaunchError as reason:
            problem = str(reason)
    needed = needed_ports("head" if wanted.head else "worker", dict(wanted.ports))
    return Network(found, wire, problem, tuple(taken_ports(needed)))


def links(kind: str, hosts: int, root: Path = Path("/"), library: str = LIBRARY) -> Links:
    """Return what joins this host's devices (`npu`, `gpu` or `none`) with those of others; nothing for one host."""
    if hosts == 1 or kind == "none":
        return Links()
    if kind == "gpu":
        adapters, files = (names(root / folder) for folder in ("sys/class/infiniband", "dev/infiniband"))
        return Links(adapters=adapters, files=files, library=why_not(library))
    config = (root / "etc" / "hccn.conf").is_file()
    tool = shutil.which("hccn_tool") or shutil.which(TOOL)
    if tool is None:
        return Links(problem=f"there is no hccn_tool on PATH, and no {TOOL}", config=config)
    with ThreadPoolExecutor(max_workers=8) as pool:
        return Links(tuple(pool.map(lambda device: link(tool, device), npu_numbers(root / "dev"))), config=config)


def link(tool: str, device: int) -> Link:
    """Ask hccn_tool for one NPU's link."""
    state, address = (ask([tool, "-i", str(device), f"-{about}", "-g"], SECONDS) for about in ("link", "ip"))
    up = re.search(r"link status\s*:\s*(\w+)", state.output)
    ip = re.search(r"ipaddr\s*:\s*(\S+)", address.output)
    why = state.problem or state.output.strip()[:200] or "hccn_tool says nothing"
    return Link(device, up[1] if up else why, ip[1] if ip else None)


def names(folder: Path) -> tuple[str, ...]:
    """List what is in a folder; nothing where there is none."""
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()


def why_not(library: str) -> str | None:
    """Return why a library cannot be loaded; None where it can."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None


@check("network.address")
def address(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    found = facts.network
    if found.problem:
        yield error(found.problem, "correct `address` or `nic` of this host in the inventory")
    elif found.wire:
        yield ok(f"{found.wire[0]} carries {found.wire[1]}")
    else:
        yield ok("; ".join(f"{name}: {', '.join(addresses)}" for name, addresses in found.nics.items()) or "no NIC")


@check("network.ports")
def ports(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    for line in facts.network.taken:
        yield error(line, "end it if it is yours (./run.sh stop), or choose other `ports` in the inventory")
    if not facts.network.taken:
        yield ok("the ports of Ray are free")


@check("network.variables")
def variables(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    found = facts.network
    here = [address for addresses in found.nics.values() for address in addresses]
    for name in ADDRESSES:
        if (value := facts.variables.get(name)) is not None:
            nics = [nic for nic, addresses in found.nics.items() if value in addresses]
            yield _judged(name, value, wanted, found, nics, f"is no address of this host ({', '.join(here)})")
    for name in (*EXACT, *PATTERNS):
        if (value := facts.variables.get(name)) is not None:
            nics = _listed(value, found.nics) if name in EXACT else _matching(value, found.nics)[:1]
            yield _judged(name, value, wanted, found, nics, f"names no NIC of this host ({', '.join(found.nics)})")


def _judged(name: str, value: str, wanted: Wanted, found: Network, nics: list[str], why: str) -> Finding:
    """Judge a variable's value: a wrong one is fatal where it wins, the inventory's or that of the launching shell.

    Args:
        nics: that the value leads to, by which the run would be reached; none where it is wrong in itself.
        why: what is wrong then.
    """
    if nics and found.wire is not None and wanted.hosts > 1 and set(nics) != {found.wire[0]}:
        other = next(nic for nic in nics if nic != found.wire[0])
        nics, why = [], f"leads to {other}, and the hosts reach each other at {found.wire[1]} on {found.wire[0]}"
    if nics:
        return ok(f"{name}={value}")
    if name in wanted.environment:
        fix = f"take {name} out of the inventory: the launcher sets it, from this host's `address` there"
        return error(f"{name}={value} {why}", fix)
    if wanted.hosts == 1:
        return error(f"{name}={value} {why}", f"unset {name}, in ~/.bashrc too: the launcher sets it")
    fix = f"unset {name}, in ~/.bashrc too: the launcher's value wins, but on the host from which the run is started"
    return warning(f"{name}={value} {why}", fix)


def _listed(names: str, nics: Iterable[str]) -> list[str]:
    """Return the network interfaces that gloo takes by this value; none where one is not there."""
    wanted = names.split(",")
    return wanted if set(wanted) <= set(nics) else []


def _matching(pattern: str, nics: Iterable[str]) -> list[str]:
    """Return the NICs that fit, in the system's order: HCCL and NCCL meet on the first, which after `^docker` is lo."""
    without_not = pattern.removeprefix("^")
    words = tuple(without_not.removeprefix("=").split(","))
    exact, excludes = without_not.startswith("="), without_not != pattern
    return [nic for nic in nics if (nic in words if exact else nic.startswith(words)) != excludes]


@check("network.links")
def between(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    kind = pins(wanted.stack).devices
    if wanted.hosts > 1 and kind == "npu" and facts.devices.found:
        yield from _of_npus(facts.links, product(facts.devices.chip or "") == "A3")
    if wanted.hosts > 1 and kind == "gpu" and facts.links.adapters:
        yield _rdma(facts.links)


def _of_npus(found: Links, a3: bool) -> Iterator[Finding]:
    """Judge the NPUs' links; an A3's dies talk over HCCS: DOWN and no address were seen where all was well."""
    if found.problem:
        yield warning(f"links were not looked at: {found.problem}", "mount the driver's tools into the container")
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


def _rdma(found: Links) -> Finding:
    adapters = ", ".join(found.adapters)
    if not any(name.startswith("uverbs") for name in found.files):
        what = f"{adapters}, and no /dev/infiniband/uverbs*: NCCL takes TCP"
        return warning(what, "docker run --device /dev/infiniband")
    if found.library:
        return warning(f"{found.library}: NCCL takes TCP", "apt-get install ibverbs-providers libibverbs1")
    return ok(adapters)
