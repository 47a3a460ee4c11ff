"""The host's network: the NIC that carries the address, and the ports of a run."""

from collections.abc import Iterator

from launch.doctor.checking import Said, check, error, ok, warning
from launch.doctor.facts import Facts, Listener
from launch.doctor.gather.network import ranges
from launch.doctor.wanted import Wanted
from launch.stacks import pins

DAEMON_PORTS = 20  # Ray's daemons take the first ones of the range of its workers


@check(
    "network.nic",
    looks_at=(
        "the NICs that are up, the addresses that they carry, and the NIC and address of the inventory",
        "已启用的网卡及其地址，以及 inventory 中的网卡与地址",
    ),
    means=(
        "HCCL, gloo and Ray talk over the NIC that they are told; over a wrong one they wait until they time out",
        "HCCL、gloo 与 Ray 使用指定的网卡通信；网卡错误时会一直等到超时",
    ),
    fix=("correct the address or the NIC in the inventory", "修正 inventory 中的地址或网卡"),
)
def nic(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    network = facts.network
    there = "; ".join(f"{name}: {', '.join(addresses)}" for name, addresses in network.nics.items()) or "no NIC"
    if network.problem:
        yield error(network.problem, "correct `address` or `nic` of this host in the inventory")
    elif network.wire:
        yield ok(f"{network.wire[0]} carries {network.wire[1]}")
    else:
        yield _candidates(network.nics, there)


def _candidates(nics: dict[str, list[str]], there: str) -> Said:
    """This machine alone: any NIC will do, but one should know that there are several."""
    wired = [name for name, addresses in nics.items() if name != "lo" and addresses]
    if len(wired) > 1:
        return ok(f"{len(wired)} NICs with addresses, {there}: with other hosts, `address` in the inventory chooses")
    return ok(there)


@check(
    "network.ports",
    looks_at=(
        "whether somebody listens on Ray's ports (on the head also its port and the dashboard), or in the range of "
        "HCCL's host ports",
        "Ray 的端口（head 上还包括主端口与 dashboard）以及 HCCL 主机端口段是否已被占用",
    ),
    means=("a taken port ends the start of Ray or of HCCL", "端口被占用时 Ray 或 HCCL 无法启动"),
    fix=(
        "end what listens there if it is yours, or choose other `ports` in the inventory",
        "结束自己的占用进程，或在 inventory 中改 `ports`",
    ),
)
def ports(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    own = {int(wanted.ports[name]): name for name in ("ray", "dashboard")} if wanted.head else {}
    first, _ = ranges(str(wanted.ports["workers"]))[0]
    daemons = dict.fromkeys(range(first, first + DAEMON_PORTS), "workers")
    problems = [error(*_taken(group, own | daemons)) for group in _groups(facts, own | daemons)]
    if pins(wanted.stack).devices == "npu":
        low, high = ranges(str(wanted.ports["hccl_host"]))[0]
        hccl = dict.fromkeys(range(low, high + 1), "hccl_host")
        problems += [warning(*_taken(group, hccl)) for group in _groups(facts, hccl)]
    yield from problems
    if not problems:
        yield ok(
            ", ".join([*(f"{name} {port}" for port, name in own.items()), f"Ray's daemons from {first}"]) + ": free"
        )


def _groups(facts: Facts, names: dict[int, str]) -> list[list[Listener]]:
    """Those on these ports, together where they belong to the same run of ours or to the same process."""
    groups: dict[object, list[Listener]] = {}
    for listener in facts.network.listeners:
        if listener.port in names:
            groups.setdefault(listener.run or listener.pid or listener.port, []).append(listener)
    return list(groups.values())


def _taken(group: list[Listener], names: dict[int, str]) -> tuple[str, str]:
    """What is taken by whom, and what to do."""
    one = group[0]
    ports = ", ".join(f"{listener.port} ({names[listener.port]})" for listener in group)
    if one.run:
        who, end = f"run {one.run}", f"wait for it, or ./run.sh stop {one.run}"
    elif one.pid:
        who, end = f"{one.process} ({one.pid})", f"if it is yours: kill {one.pid}"
    else:
        who, end = "a process of another user", f"ss -ltnp 'sport = :{one.port}' as root says whose it is"
    what = f"port {ports} taken on {one.address} by {who}"
    return what, f"{end}; else choose other `ports` in the inventory"


@check(
    "network.ephemeral",
    looks_at=(
        "`net.ipv4.ip_local_port_range` and `ip_local_reserved_ports`, beside the ranges of Ray's workers and of "
        "HCCL's host ports",
        "`net.ipv4.ip_local_port_range` 与 `ip_local_reserved_ports`，对照 Ray worker 与 HCCL 主机端口段",
    ),
    means=(
        "the kernel may give such a port to any outgoing connection; now and then HCCL or a worker finds it taken",
        "内核可能把这些端口分配给任意出站连接，HCCL 或 worker 会偶发地发现端口被占用",
    ),
    fix=(
        "reserve the range with sysctl on the host, or choose ranges below the kernel's",
        "在主机上用 sysctl 预留该端口段，或选择内核范围以外的端口段",
    ),
)
def ephemeral(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    names = ("workers", "hccl_host") if pins(wanted.stack).devices == "npu" else ("workers",)
    low, high = facts.network.ephemeral
    open_ranges = []
    for name in names:
        for first, last in ranges(str(wanted.ports[name])):
            shared = range(max(first, low), min(last, high) + 1)
            if any(not _reserved(port, facts.network.reserved) for port in shared):
                open_ranges.append((name, f"{first}-{last}"))
    for name, text in open_ranges:
        reserved = ",".join([*(f"{first}-{last}" for first, last in facts.network.reserved), text])
        yield warning(
            f"ports {text} ({name}) lie among those the kernel gives away ({low}-{high})",
            f"on the host: sysctl -w net.ipv4.ip_local_reserved_ports={reserved}",
        )
    if not open_ranges:
        yield ok(f"{' and '.join(names)}: not among those the kernel gives away ({low}-{high})")


def _reserved(port: int, reserved: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= port <= high for low, high in reserved)
