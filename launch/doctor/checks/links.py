"""The devices' own network, over which HCCL joins hosts: links, addresses, TLS."""

from collections.abc import Iterator

from launch.doctor.checking import Said, check, error, ok, warning
from launch.doctor.checks.versions import product
from launch.doctor.facts import Facts
from launch.doctor.wanted import Wanted
from launch.stacks import pins

FAULT = "https://www.hiascend.com/document/detail/zh/mindcluster/730/faultdiag/faultdiagug/mindxdlFDUG021.html"


def _asked(facts: Facts, wanted: Wanted) -> bool:
    return pins(wanted.stack).devices == "npu" and bool(facts.devices.found)


@check(
    "links.state",
    looks_at=("`hccn_tool -i N -link -g` for each NPU", "每个 NPU 的 `hccn_tool -i N -link -g`"),
    means=(
        "between hosts, HCCL waits for a link that is down until HCCL_CONNECT_TIMEOUT; on A3, whose dies talk over "
        "HCCS, DOWN has been seen where all was well, so it is a warning there",
        "多机时 HCCL 会等待断开的链路直到 HCCL_CONNECT_TIMEOUT；A3 的芯片经 HCCS 互联，正常时也可能显示 DOWN，"
        "因此仅作警告",
    ),
    fix=(
        "look at cable, optical module and the switch's port; in a container mount hccn_tool and /etc/hccn.conf",
        "检查线缆、光模块与交换机端口；容器内需挂载 hccn_tool 与 /etc/hccn.conf",
    ),
)
def state(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    if not _asked(facts, wanted):
        return
    alone, links = wanted.hosts == 1, facts.links
    if links.problem:
        if not alone:
            yield warning(f"links were not looked at: {links.problem}", "mount the driver's tools into the container")
        return
    down = [link for link in links.found if link.state != "UP"]
    if not down:
        yield ok(f"all {len(links.found)} UP")
        return
    what = ", ".join(f"device {link.device}: {link.state}" for link in down)
    if alone or product(facts.devices.chip or "") == "A3":
        yield warning(what, f"hccn_tool -i {down[0].device} -net_health -g; matters between hosts ({FAULT})")
    else:
        yield error(what, f"hccn_tool -i {down[0].device} -optical -g, and look at the cable and the switch's port")


@check(
    "links.address",
    looks_at=(
        "`hccn_tool -i N -ip -g` for each NPU, and `/etc/hccn.conf`",
        "每个 NPU 的 `hccn_tool -i N -ip -g` 与 `/etc/hccn.conf`",
    ),
    means=(
        "an A2's NPUs reach those of other hosts by these addresses; without them HCCL cannot connect",
        "A2 的 NPU 通过这些地址访问其他主机的 NPU；缺少时 HCCL 无法建链",
    ),
    fix=(
        "set them: hccn_tool -i N -ip -s address .. netmask ..; in a container mount /etc/hccn.conf",
        "配置地址：hccn_tool -i N -ip -s address .. netmask ..；容器内需挂载 /etc/hccn.conf",
    ),
)
def address(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    links = facts.links
    if not _asked(facts, wanted) or wanted.hosts == 1 or product(facts.devices.chip or "") == "A3":
        return
    without = [str(link.device) for link in links.found if link.address is None]
    if without:
        yield error(
            f"no address: device {', '.join(without)}", f"hccn_tool -i {without[0]} -ip -s address .. netmask .."
        )
    if not links.config:
        yield error("there is no /etc/hccn.conf", "mount it from the host into the container")
    if links.found and not without and links.config:
        yield ok(", ".join(str(link.address) for link in links.found))


@check(
    "links.tls",
    looks_at=("`hccn_tool -i N -tls -g` for each NPU", "每个 NPU 的 `hccn_tool -i N -tls -g`"),
    means=(
        "HCCL connects two NPUs only if both want TLS, or neither; all hosts are compared as well (hosts.traits)",
        "两个 NPU 的 TLS 开关一致时 HCCL 才能建链；各主机之间也会比较（hosts.traits）",
    ),
    fix=("set the same for all: hccn_tool -i N -tls -s enable 0", "统一设置：hccn_tool -i N -tls -s enable 0"),
)
def tls(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    known = {link.device: link.tls for link in facts.links.found if link.tls is not None}
    if not known:
        return
    on = [str(device) for device, wants in known.items() if wants]
    if on and len(on) < len(known):
        what = f"TLS is on for device {', '.join(on)} and off for the others"
        yield error(what, "; ".join(f"hccn_tool -i {device} -tls -s enable 0" for device in on))
    else:
        yield ok(f"TLS {'on' if on else 'off'} for all {len(known)}")
