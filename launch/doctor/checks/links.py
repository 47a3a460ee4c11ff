"""The network of the devices: the NPUs' own ports, over which HCCL joins hosts, and RDMA between hosts with GPUs.

hccn_tool answers `link status: UP`, `ipaddr:..` and `netmask:..`, and `dev_id:0, tls switch[0](0:disable, 1:enable),
..`; without a certificate, TLS is off. From the pages on the check before a training of MindCluster's fault diagnosis
(hiascend.com, mindxdlFDUG021); not run on hardware by this project.

Without RDMA, NCCL takes TCP, and says so only in its log.
"""

import ctypes
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launch.doctor.checking import Said, check, error, ok, warning
from launch.doctor.checks.versions import product
from launch.doctor.facts import Facts, Link, Links, Rdma
from launch.doctor.requirements import Wanted
from launch.programs import ask
from launch.stacks import pins

TOOL = Path("/usr/local/Ascend/driver/tools/hccn_tool")
SECONDS = 10
LIBRARY = "libibverbs.so.1"
FAULT = "https://www.hiascend.com/document/detail/zh/mindcluster/730/faultdiag/faultdiagug/mindxdlFDUG021.html"


def links(devices: Sequence[int], root: Path = Path("/")) -> Links:
    """The links of these devices, or why they cannot be told."""
    config = (root / "etc" / "hccn.conf").is_file()
    tool = shutil.which("hccn_tool") or shutil.which(TOOL)
    if tool is None:
        return Links(problem=f"there is no hccn_tool on PATH, and no {TOOL}", config=config)
    with ThreadPoolExecutor(max_workers=4) as pool:
        return Links(tuple(pool.map(lambda device: link(tool, device), devices)), config=config)


def link(tool: str, device: int) -> Link:
    """One device's."""

    def said(about: str, pattern: str) -> tuple[str | None, str]:
        answer = ask([tool, "-i", str(device), f"-{about}", "-g"], SECONDS)
        found = re.search(pattern, answer.output)
        return (found[1] if found else None), answer.problem or answer.output.strip()[:200] or "hccn_tool says nothing"

    state, why = said("link", r"link status\s*:\s*(\w+)")
    address, _ = said("ip", r"ipaddr\s*:\s*(\S+)")
    switch, tls = said("tls", r"tls switch\[(\d)\]")
    if switch is None and "no certificate" in tls:
        switch = "0"
    return Link(device, state or why, address, None if switch is None else switch == "1")


def rdma_of_host(root: Path = Path("/"), library: str = LIBRARY) -> Rdma:
    """The RDMA adapters, and whether what NCCL loads for them at run time is here."""
    return Rdma(
        adapters=names(root / "sys" / "class" / "infiniband"),
        devices=names(root / "dev" / "infiniband"),
        problem=why_not(library),
    )


def names(folder: Path) -> tuple[str, ...]:
    """What is in a folder; nothing where there is none."""
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()


def why_not(library: str) -> str | None:
    """Why a library cannot be loaded; None where it can."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None


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


@check(
    "links.rdma",
    looks_at=(
        "the adapters in `/sys/class/infiniband`, the files in `/dev/infiniband` by which processes reach them, and "
        "whether `libibverbs.so.1`, which NCCL loads at run time, can be loaded",
        "`/sys/class/infiniband` 中的网卡、`/dev/infiniband` 中的设备文件，以及 NCCL 运行时加载的 "
        "`libibverbs.so.1` 能否加载",
    ),
    means=(
        "between hosts NCCL takes TCP where one of them is missing, and says so only in its log: weight syncs and "
        "gradients are many times slower",
        "缺少其中之一时，NCCL 在主机间改用 TCP，且只写在它的日志里：权重同步与梯度通信会慢很多倍",
    ),
    fix=(
        "in a container map the devices: docker run --device /dev/infiniband (the launcher does); on a host install "
        "ibverbs-providers and libibverbs1",
        "容器内需映射设备：docker run --device /dev/infiniband（启动器会自动添加）；主机上安装 ibverbs-providers 与 "
        "libibverbs1",
    ),
)
def rdma(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    found = facts.rdma
    if pins(wanted.stack).devices != "gpu" or wanted.hosts == 1 or not found.adapters:
        return
    adapters = ", ".join(found.adapters)
    if not any(name.startswith("uverbs") for name in found.devices):
        yield warning(
            f"{adapters}, and no /dev/infiniband/uverbs*: NCCL takes TCP", "docker run --device /dev/infiniband"
        )
    elif found.problem:
        yield warning(f"{found.problem}: NCCL takes TCP", "apt-get install ibverbs-providers libibverbs1")
    else:
        yield ok(adapters)
