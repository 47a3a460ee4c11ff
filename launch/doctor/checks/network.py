"""The host's network: its NICs and the one that carries the address, the ports of a run, and who can reach them."""

import socket
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import psutil

from launch import door as doors
from launch.doctor.checking import Said, check, error, ok, warning
from launch.doctor.facts import Facts, Listener, Network
from launch.doctor.requirements import Wanted
from launch.errors import LaunchError
from launch.network import choose, nics
from launch.processes import mark
from launch.stacks import pins

KERNEL = Path("/proc/sys/net/ipv4")
DAEMON_PORTS = 20  # Ray's daemons take the first ones of the range of its workers
TRAINING = ("ray::", "/raylet", "gcs_server", "VLLM::", "VLLMEngineCore", "main_ppo", "TransferQueue")


def network(wanted: Wanted, kernel: Path = KERNEL) -> Network:
    """What the host's network looks like now."""
    found = nics()
    wire, problem = None, None
    if wanted.address is not None:
        try:
            chosen = choose(wanted.address, wanted.nic, found)
            wire = (chosen.nic, chosen.address)
        except LaunchError as reason:
            problem = str(reason)
    low, high = (kernel / "ip_local_port_range").read_text().split()
    reserved = (kernel / "ip_local_reserved_ports").read_text().strip()
    door = next(iter(doors.problems()), None)
    ephemeral = int(low), int(high)
    return Network(found, wire, problem, listeners(), ephemeral, tuple(ranges(reserved)), door, doors.shown())


def listeners() -> tuple[Listener, ...]:
    """The TCP ports that processes listen on."""
    found = {}
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN:
            address, port = connection.laddr[:2]
            guarded = connection.pid is not None and doors.guarded(connection.pid)
            found.setdefault(port, Listener(port, address, connection.pid, *command_and_run(connection.pid), guarded))
    return tuple(found[port] for port in sorted(found))


def command_and_run(pid: int | None) -> tuple[str | None, str | None]:
    """The command line of a process, and the run that it belongs to; None where it may not be seen or has ended."""
    if pid is None:
        return None, None
    try:
        process = psutil.Process(pid)
        words = " ".join(process.cmdline()).split()  # a title is padded with blanks
        return " ".join(words)[:120], mark(process)
    except psutil.Error:
        return None, None


def ranges(text: str) -> list[tuple[int, int]]:
    """Ports as the kernel and HCCL write them: 60000-60050,60100. Empty for nothing and for auto."""
    parts = [part for part in text.replace(" ", "").split(",") if part and part != "auto"]
    return [(int(low), int(high or low)) for low, _, high in (part.partition("-") for part in parts)]


def open_ports(address: str, ports: list[int]) -> list[socket.socket]:
    """Listen on ports of an address. Those that are taken are left out: what they mean is for `listeners`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sockets = []
    for port in ports:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address, port))
            listening.listen()
            sockets.append(listening)
        except OSError:
            listening.close()
    return sockets


def reach(address: str, port: int, seconds: float) -> str | None:
    """None where a connection can be made, else why not."""
    try:
        with socket.create_connection((address, port), timeout=seconds):
            return None
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except OSError as reason:
        return reason.strerror or str(reason)


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


@check(
    "network.door",
    looks_at=(
        "whether a run can close its ports to all but its own hosts here (a C compiler, the kernel's socket filters), "
        "and ports of Ray, verl and vLLM that are open to others now",
        "本机能否让任务的端口只对任务自己的主机开放（C 编译器与内核套接字过滤），"
        "以及当前对外开放的 Ray、verl、vLLM 端口",
    ),
    means=(
        "verl's data plane and torch's stores unpickle what they are sent: whoever reaches such a port runs code as "
        "you. Runs of `./run.sh train` and the demo refuse to start where their ports could not be closed",
        "verl 的数据面与 torch 的 store 会反序列化收到的内容：能连上这些端口的人就能以你的身份执行代码。"
        "无法关闭端口时，`./run.sh train` 与 demo 拒绝启动",
    ),
    fix=(
        "install gcc; of a run without a door, end it or put a firewall before the host (SECURITY.md)",
        "安装 gcc；对没有保护的任务，结束它，或在主机前设置防火墙（SECURITY.zh.md）",
    ),
)
def door(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    open_ones = [one for one in facts.network.listeners if _is_open(one)]
    if facts.network.door:
        yield error(facts.network.door, "install gcc, or use one of the images")
    elif facts.network.shown:
        yield warning(facts.network.shown, "for silent ports: --cap-add NET_ADMIN, or a firewall before the host")
    for pid in dict.fromkeys(one.pid for one in open_ones):
        its = [one for one in open_ones if one.pid == pid]
        ports = ", ".join(str(one.port) for one in its)
        yield warning(
            f"port {ports} of {its[0].process} ({pid}) is open to whoever reaches {its[0].address}",
            "start runs with ./run.sh train; SECURITY.md says how to put a firewall before others",
        )
    if not facts.network.door and not facts.network.shown and not open_ones:
        yield ok("a run's ports are closed to strangers; no port of Ray, verl or vLLM is open")


def _is_open(one: Listener) -> bool:
    """Whether a training's process listens to others, without a door."""
    training = one.process is not None and any(word in one.process for word in TRAINING)
    return training and not one.guarded and not ip_address(one.address).is_loopback
