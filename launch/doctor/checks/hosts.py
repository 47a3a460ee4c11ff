"""The hosts beside each other: do all answer, are they alike, do their clocks agree, can each reach each?"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from launch.doctor.checking import Check, HostReport, Said, check, error, ok, warning
from launch.nodes.facts import ALLOWED_SECONDS

TRAITS_THAT_MAY_DIFFER = ("driver",)


@dataclass(frozen=True)
class Meeting:
    """What was seen while the hosts talked.

    Attributes:
        silent: why a host gave no report, by host.
        clocks: how many seconds a host's clock is ahead of ours, and how wrong that may be, by host.
        tried: how many connections were tried between hosts.
        unreached: (from, to, port, why) of those that could not be made.
    """

    silent: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)
    tried: int = 0
    unreached: tuple[tuple[str, str, int, str], ...] = ()


@check(
    "hosts.answer",
    looks_at=(
        "whether every host of the inventory answers over ssh and gives a report",
        "inventory 中的每台主机是否能通过 ssh 应答并给出报告",
    ),
    means=(
        "a run waits for all hosts until `join_seconds`, then ends",
        "任务会等待所有主机直到 `join_seconds`，然后结束",
    ),
    fix=(
        "what ssh said is in the finding: try `ssh HOST true` by hand",
        "发现中有 ssh 的报错：可手工执行 `ssh HOST true`",
    ),
)
def answer(reports: list[HostReport], meeting: Meeting) -> Iterator[Said]:
    for host, reason in meeting.silent.items():
        yield error(f"{host}: {reason}", f"try by hand: ssh {host} true")
    if not meeting.silent:
        yield ok(f"all {len(reports)} hosts")


@check(
    "hosts.traits",
    looks_at=(
        "versions, these sources, the chip, the number of devices and the TLS of the NPUs, host by host",
        "逐台比较版本、本项目源码、芯片、设备数与 NPU 的 TLS 设置",
    ),
    means=(
        "different versions fail in the first exchange between hosts (HCCL's EI0008, pickles that do not load); "
        "different sources train with different code",
        "版本不同会在主机间首次通信时失败（HCCL 的 EI0008、pickle 无法加载）；源码不同则各主机运行的代码不同",
    ),
    fix=("use the same image and the same checkout on all hosts", "所有主机使用相同的镜像与代码"),
)
def traits(reports: list[HostReport], meeting: Meeting) -> Iterator[Said]:
    names = dict.fromkeys(name for report in reports for name in report.traits)
    different = False
    for name in names:
        values = {report.host: report.traits.get(name, "none") for report in reports}
        if len(set(values.values())) > 1:
            different = True
            level = warning if name in TRAITS_THAT_MAY_DIFFER else error
            yield level(f"{name}: {_grouped(values)}", "use the same image, driver and checkout on all hosts")
    if len(reports) > 1 and not different:
        yield ok(f"{len(names)} versions and numbers are the same on all hosts")


def _grouped(values: dict[str, str]) -> str:
    """`2.9 on a, b; 2.10 on c`."""
    ordered = sorted(values, key=lambda host: values[host])
    return "; ".join(
        f"{value} on {', '.join(hosts)}" for value, hosts in groupby(ordered, key=lambda host: values[host])
    )


@check(
    "hosts.clock",
    looks_at=(
        "the hosts' clocks beside the head's, with the time that the question took taken out",
        "各主机与 head 的时钟差，已扣除询问耗时",
    ),
    means=(
        "time-outs and the order of logs go wrong; a launch refuses more than 5 s",
        "超时判断与日志顺序会出错；相差超过 5 秒时拒绝启动",
    ),
    fix=(
        "let both follow the same time server (chronyd, systemd-timesyncd)",
        "使用相同的时间服务器（chronyd、systemd-timesyncd）",
    ),
)
def clock(reports: list[HostReport], meeting: Meeting) -> Iterator[Said]:
    if len(meeting.clocks) < 2:
        return
    head, *others = meeting.clocks
    ahead, unsure = meeting.clocks[head]
    skews = {host: (meeting.clocks[host][0] - ahead, meeting.clocks[host][1] + unsure) for host in others}
    apart = {host: skew for host, (skew, unsure) in skews.items() if abs(skew) - unsure > ALLOWED_SECONDS}
    for host, skew in apart.items():
        side = "ahead of" if skew > 0 else "behind"
        yield error(
            f"{host} is {abs(skew):.1f} s {side} {head}", "on both: timedatectl set-ntp true, or chronyc makestep"
        )
    if not apart:
        yield ok(f"within {max(abs(skew) + unsure for skew, unsure in skews.values()):.2f} s")


@check(
    "hosts.reach",
    looks_at=(
        "connections from each host to each other while the doctor listens there: on a worker's port, HCCL's first "
        "host port and one that the kernel chooses, and to the head on Ray's ports",
        "doctor 监听期间各主机两两之间的连接：worker 端口、HCCL 首个主机端口、内核分配的任意端口，"
        "以及到 head 的 Ray 端口",
    ),
    means=(
        "a firewall or a route between two hosts: they join, and then hang",
        "主机间存在防火墙或路由问题：能加入集群，随后卡住",
    ),
    fix=(
        "open all ports between the hosts: torch.distributed and vLLM take whichever the kernel gives them",
        "在主机之间放行所有端口：torch.distributed 与 vLLM 使用内核随机分配的端口",
    ),
)
def reach(reports: list[HostReport], meeting: Meeting) -> Iterator[Said]:
    for start, end, port, why in meeting.unreached:
        fix = f"open port {port} on {end} for {start} (firewall-cmd --list-all, iptables -L), or look at the route"
        yield error(f"{start} does not reach {end} on port {port}: {why}", fix)
    if meeting.tried and not meeting.unreached:
        yield ok(f"all {meeting.tried} connections")


TOGETHER = tuple(value for value in list(globals().values()) if isinstance(value, Check))
