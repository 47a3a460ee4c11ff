"""The machine: limits, shared memory, disks, memory, clock, huge pages."""

import ctypes
import re
import resource
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from launch.doctor.checking import Said, check, error, ok, warning
from launch.doctor.facts import GIB, MIB, Facts, System
from launch.doctor.requirements import Wanted
from launch.processes import OPEN_FILES
from launch.root import exists
from launch.stacks import pins

CGROUP_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 2, version 1
TIMEX_BYTES = 512  # more than any kernel's struct timex
NOT_SYNCHRONIZED = 5  # TIME_ERROR of adjtimex(2)
FEWEST_FILES = 4096
LOCKED_BYTES = 1 * GIB
SHARED_GIB = {"none": 1, "gpu": 16, "npu": 16}
TMP_GIB = 5
OUT_GIB = 50


def system(folders: Sequence[str], root: Path = Path("/")) -> System:
    """The machine as it is now; free space where each of `folders` is, or would be made."""
    memory = psutil.virtual_memory()
    total = min([memory.total, *cgroup_limits(root)])
    shared = shutil.disk_usage("/dev/shm")
    return System(
        open_files=limits(resource.RLIMIT_NOFILE),
        locked_memory=limits(resource.RLIMIT_MEMLOCK),
        shared_memory=(shared.total, shared.free),
        disks={folder: shutil.disk_usage(existing(Path(folder))).free for folder in folders},
        memory=(total, min(memory.available, total)),
        synchronized=clock_is_synchronized(),
        huge_pages=huge_pages((root / "proc" / "meminfo").read_text()),
    )


def limits(which: int) -> tuple[int | None, int | None]:
    """A limit of this process, soft and hard; None is unlimited."""
    soft, hard = (None if one == resource.RLIM_INFINITY else one for one in resource.getrlimit(which))
    return soft, hard


def cgroup_limits(root: Path) -> list[int]:
    """The memory that this container may use, in bytes; nothing outside one."""
    texts = [(root / file).read_text(errors="replace").strip() for file in CGROUP_LIMITS if (root / file).is_file()]
    return [int(text) for text in texts if re.fullmatch("[0-9]{1,19}", text)]


def existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return folder if exists(folder) else existing(folder.absolute().parent)


def clock_is_synchronized() -> bool | None:
    """Whether the kernel says that a time server disciplines its clock; None where it may not be asked."""
    library = ctypes.CDLL(None)
    state = library.adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))  # modes 0: asks, sets nothing
    return None if state < 0 else state != NOT_SYNCHRONIZED


def huge_pages(meminfo: str) -> tuple[int, int]:
    """Bytes that are set aside for huge pages, and how many of them are not used."""
    fields = dict(re.findall(r"(?m)^(Hugepagesize|HugePages_Total|HugePages_Free): {0,30}([0-9]{1,18})\b", meminfo))
    size, total, idle = (int(fields.get(name, 0)) for name in ("Hugepagesize", "HugePages_Total", "HugePages_Free"))
    return total * size * 1024, idle * size * 1024


@check(
    "system.files",
    looks_at=("`ulimit -Hn`, the open files of a process", "`ulimit -Hn`，单个进程可打开的文件数"),
    means=(
        "Ray and verl keep thousands of sockets and shared files open; the run ends with `Too many open files`",
        "Ray 与 verl 会打开数千个套接字与共享文件；不足时报 `Too many open files`",
    ),
    fix=(
        "the launcher raises the soft limit itself; for the hard one: limits.conf, or docker's --ulimit nofile",
        "启动器会自行提高软限制；硬限制更低时修改 limits.conf 或使用 docker --ulimit nofile",
    ),
)
def files(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    soft, hard = facts.system.open_files
    if soft is None or soft >= OPEN_FILES:
        yield ok(f"{soft or 'unlimited'} open files")
    elif hard is None or hard >= OPEN_FILES:
        yield ok(f"{soft} open files, which the launcher raises to {OPEN_FILES}")
    else:
        fix = f"'* hard nofile {OPEN_FILES}' in /etc/security/limits.conf, or docker run --ulimit nofile={OPEN_FILES}"
        level = error if hard < FEWEST_FILES else warning
        yield level(f"{hard} open files at most; {OPEN_FILES} wanted", fix)


@check(
    "system.memlock",
    looks_at=(
        "`ulimit -l`, the memory that a process may lock, on stacks with devices",
        "有加速卡的软件栈上的 `ulimit -l`（可锁定内存）",
    ),
    means=(
        "RDMA registers memory by locking it; NCCL and HCCL between hosts fail or become slow with little of it",
        "RDMA 注册内存需要锁定；过小时多机 NCCL/HCCL 会失败或变慢",
    ),
    fix=(
        "ulimit -l unlimited, or docker run --ulimit memlock=-1",
        "ulimit -l unlimited，或 docker run --ulimit memlock=-1",
    ),
)
def memlock(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    if pins(wanted.stack).devices == "none" or wanted.hosts == 1:
        return
    soft, _ = facts.system.locked_memory
    if soft is None or soft >= LOCKED_BYTES:
        yield ok("unlimited" if soft is None else f"{soft / GIB:.0f} GiB")
    else:
        yield warning(
            f"{soft >> 10} KiB of memory may be locked", "ulimit -l unlimited; docker run --ulimit memlock=-1"
        )


@check(
    "system.shm",
    looks_at=("the size and the free part of `/dev/shm`", "`/dev/shm` 的大小与剩余空间"),
    means=(
        "Ray's objects, verl's weight buckets and vLLM's queues lie there; Docker gives 64 MB unless told otherwise, "
        "and writing past the end kills a process with SIGBUS",
        "Ray 对象、verl 权重桶与 vLLM 队列都在其中；Docker 默认仅 64 MB，写满时进程会被 SIGBUS 杀死",
    ),
    fix=(
        "docker run --shm-size=64g, or remove leftovers (leftovers.segments)",
        "docker run --shm-size=64g，或清理残留（leftovers.segments）",
    ),
)
def shm(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    total, free = facts.system.shared_memory
    need = SHARED_GIB[pins(wanted.stack).devices]
    unit, name = (GIB, "GiB") if total >= GIB else (MIB, "MiB")
    text = f"{free / unit:.1f} of {total / unit:.1f} {name} free in /dev/shm"
    if free >= need * GIB:
        yield ok(text)
    elif total >= need * GIB:
        yield error(
            f"{text}; {need} GiB wanted", "ls -lS /dev/shm says what fills it; leftovers.segments, what nobody uses"
        )
    else:
        yield error(
            f"{text}; {need} GiB wanted",
            f"docker run --shm-size={4 * need}g, or mount -o remount,size={4 * need}g /dev/shm",
        )


@check(
    "system.disk",
    looks_at=("free space in /tmp and where the result goes", "/tmp 与结果目录的剩余空间"),
    means=(
        "Ray spills objects and logs to /tmp and refuses work when a disk is 95 % full; checkpoints are large",
        "Ray 向 /tmp 写日志与溢出对象，磁盘用到 95 % 时拒绝任务；checkpoint 也很大",
    ),
    fix=("free some space, or give another folder with --out", "清理空间，或用 --out 指定其他目录"),
)
def disk(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    for folder, free in facts.system.disks.items():
        need = OUT_GIB if folder == wanted.out and pins(wanted.stack).devices != "none" else TMP_GIB
        text = f"{free / GIB:.0f} GiB free for {folder}"
        if free >= need * GIB:
            yield ok(text)
        else:
            yield warning(f"{text}; {need} wanted", f"free some, or use another folder: df -h {folder}")


@check(
    "system.memory",
    looks_at=(
        "the host's memory, or the container's share of it, beside what the recipe needs",
        "主机（或容器）内存，对照 recipe 的需求",
    ),
    means=(
        "offloaded parameters and optimizer states are held there; the kernel kills what asks for too much",
        "卸载的参数与优化器状态放在其中；超出时内核会杀死进程",
    ),
    fix=(
        "end other programs, take more hosts, or a recipe that offloads less",
        "结束其他程序、增加主机，或使用卸载更少的 recipe",
    ),
)
def memory(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    total, available = facts.system.memory
    text = f"{available / GIB:.0f} of {total / GIB:.0f} GiB available"
    need = wanted.host_gib
    if need is None or available >= need * GIB:
        yield ok(text)
    elif total >= need * GIB:
        yield warning(f"{text}; the recipe needs {need}", "end what uses it: ps aux --sort=-rss | head")
    else:
        yield error(f"{text}; the recipe needs {need}", "take a host with more memory, or raise the container's limit")


@check(
    "system.clock",
    looks_at=(
        "whether the kernel's clock follows a time server (adjtimex)",
        "内核时钟是否与时间服务器同步（adjtimex）",
    ),
    means=(
        "clocks that drift apart spoil logs and time-outs between hosts; how far they are apart is in hosts.clock",
        "各主机时钟漂移会打乱日志与超时判断；实际偏差见 hosts.clock",
    ),
    fix=("start chronyd or systemd-timesyncd", "启动 chronyd 或 systemd-timesyncd"),
)
def clock(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    if facts.system.synchronized is None:
        yield warning("the kernel's clock may not be asked here", "look on the host: timedatectl")
    elif facts.system.synchronized or wanted.hosts == 1:
        yield ok("synchronized" if facts.system.synchronized else "not synchronized; one host needs no common time")
    else:
        yield warning("the clock follows no time server", "timedatectl set-ntp true, or start chronyd")


@check(
    "system.hugepages",
    looks_at=("memory set aside for huge pages, in `/proc/meminfo`", "`/proc/meminfo` 中预留的大页内存"),
    means=(
        "such memory serves nobody else: a tenth of the host that lies idle is missing for offloading",
        "大页内存不能作他用：闲置超过主机内存的十分之一时会影响卸载",
    ),
    fix=("give back what is not used: sysctl -w vm.nr_hugepages=0", "释放未使用的大页：sysctl -w vm.nr_hugepages=0"),
)
def hugepages(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    reserved, idle = facts.system.huge_pages
    text = f"{reserved / GIB:.1f} GiB set aside, {idle / GIB:.1f} of it idle"
    if idle * 10 > facts.system.memory[0]:
        yield warning(text, "if no other program wants them: sysctl -w vm.nr_hugepages=0")
    else:
        yield ok(text)
