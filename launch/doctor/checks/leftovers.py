"""What earlier runs left. The doctor removes nothing: it says the command."""

import shlex
from collections.abc import Iterator

from launch.doctor.checking import Said, check, ok, warning
from launch.doctor.facts import GIB, Facts
from launch.doctor.wanted import Wanted


@check(
    "leftovers.segments",
    looks_at=(
        "files of Python, torch, vLLM, Ray and verl in `/dev/shm` that no process maps or has open",
        "`/dev/shm` 中没有进程映射或打开的 Python、torch、vLLM、Ray、verl 文件",
    ),
    means=(
        "memory that nobody uses and nobody else gets, until the host restarts",
        "无人使用的内存，直到主机重启前都不会释放",
    ),
    fix=("remove them with the command given", "用给出的命令删除"),
)
def segments(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    found = facts.leftovers.segments
    if facts.leftovers.hidden:
        yield warning(
            "this container shares the host's memory but does not see its processes: leftovers cannot be told",
            "look on the host, or start the container with --pid=host",
        )
    elif found:
        size = sum(size for _, size in found) / GIB
        yield warning(
            f"{len(found)} files in /dev/shm that nobody uses, {size:.2f} GiB", _remove([path for path, _ in found])
        )
    else:
        yield ok("nothing in /dev/shm that nobody uses")


@check(
    "leftovers.sockets",
    looks_at=(
        "socket files of verl's weight transfer in `/tmp` that nobody is bound to",
        "`/tmp` 中无人绑定的 verl 权重传输套接字文件",
    ),
    means=(
        "a worker of a later run that meets its own name there fails to bind",
        "之后的 worker 遇到同名文件时会绑定失败",
    ),
    fix=("remove them with the command given", "用给出的命令删除"),
)
def sockets(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    found = facts.leftovers.sockets
    if found:
        yield warning(f"{len(found)} socket files that nobody is bound to", _remove(list(found)))
    elif not facts.leftovers.hidden:
        yield ok("no socket files left")


@check(
    "leftovers.sessions",
    looks_at=(
        "folders of Ray sessions in `/tmp/ray` and `/tmp/aq-*` that no process names",
        "`/tmp/ray` 与 `/tmp/aq-*` 中没有进程使用的 Ray 会话目录",
    ),
    means=("logs of old runs that fill the disk", "旧任务的日志，占用磁盘"),
    fix=("remove them with the command given, once nobody wants the logs", "确认不再需要日志后，用给出的命令删除"),
)
def sessions(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    found = facts.leftovers.sessions
    if found:
        yield warning(f"{len(found)} old sessions of Ray", _remove(list(found), "rm -r"))
    elif not facts.leftovers.hidden:
        yield ok("no old sessions of Ray")


@check(
    "leftovers.orphans",
    looks_at=("processes of Ray, vLLM or verl whose parent has gone", "父进程已退出的 Ray、vLLM、verl 进程"),
    means=(
        "they may hold devices, ports and memory of a run that is over; while a Ray runs, its processes are not "
        "counted (ray.running)",
        "可能仍占用已结束任务的设备、端口与内存；有 Ray 运行时不计其进程（见 ray.running）",
    ),
    fix=("kill those that are yours, by their numbers", "按进程号结束属于自己的进程"),
)
def orphans(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    found = facts.leftovers.orphans
    for orphan in found:
        end = f"./run.sh stop {orphan.run}" if orphan.run else f"kill {orphan.pid}"
        yield warning(f"{orphan.command} ({orphan.pid}) has no parent", f"if nobody wants it: {end}")
    if not found:
        yield ok("no processes left")


def _remove(paths: list[str], command: str = "rm") -> str:
    return shlex.join([*command.split(), *paths])
