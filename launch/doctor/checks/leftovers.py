"""What runs that were killed left behind: files that no living process uses, and processes without a parent.

The doctor removes nothing: it says the command. A segment is in use while a process maps it or has it open, a socket
while one is bound to it, a session of Ray while a process names its folder.
"""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import psutil

from launch.doctor.checking import Said, check, ok, warning
from launch.doctor.facts import GIB, Facts, Leftovers, Orphan
from launch.doctor.requirements import Wanted
from launch.processes import mark

SEGMENTS = ("psm_*", "torch_*", "vllm*", "verl_weights_*", "plasma*")
SOCKETS = ("rl-colocate-zmq-*.sock",)
SESSIONS = ("ray/session_2*", "aq-*/*/session_2*")
RAY_TITLES, RAY_PROGRAMS = ("ray::",), ("raylet", "gcs_server")
ENGINE_TITLES, TRAINER = ("VLLM::", "VLLMEngineCore", "EngineCore"), "main_ppo"
HOST_IPC, HOST_PID = "ipc:[4026531839]", "pid:[4026531836]"  # Linux numbers the host's own namespaces so


def leftovers(memory: Path = Path("/dev/shm"), temporary: Path = Path("/tmp")) -> Leftovers:
    """What lies in both folders and is not used."""
    if shares_memory_with_unseen_processes():
        return Leftovers(hidden=True, orphans=tuple(orphaned_processes()))
    used, bound, commands = used_files(), bound_sockets(), command_lines()
    segments = [path for path in matches(memory, SEGMENTS) if str(path) not in used]
    return Leftovers(
        sockets=tuple(str(path) for path in matches(temporary, SOCKETS) if str(path) not in bound),
        segments=tuple((str(path), size) for path in segments if (size := size_of(path)) is not None),
        sessions=tuple(
            str(path)
            for path in matches(temporary, SESSIONS)
            if path.is_dir() and not path.is_symlink() and not any(str(path) in command for command in commands)
        ),
        orphans=tuple(orphaned_processes()),
    )


def matches(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Files by any of the patterns, each once, in order."""
    return sorted({path for pattern in patterns for path in folder.glob(pattern)})


def size_of(path: Path) -> int | None:
    """Bytes that it takes; None where it has just gone."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return None


def used_files() -> set[str]:
    """Files that a process maps or has open."""
    return {file for process in Path("/proc").glob("[0-9]*") for file in files_of(process)}


def files_of(process: Path) -> Iterator[str]:
    """A process's; none of one that has ended, nor of another user's, whose files we could not remove either."""
    try:
        for line in (process / "maps").read_text(errors="replace").splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6:
                yield fields[5]
        for file in (process / "fd").iterdir():
            yield os.readlink(file)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return


def bound_sockets() -> set[str]:
    """Socket files that a process is bound to."""
    lines = [line.split(maxsplit=7) for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {fields[7] for fields in lines if len(fields) == 8}


def command_lines() -> list[str]:
    """Of all processes."""
    return [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]


def orphaned_processes() -> Iterator[Orphan]:
    """Processes of vLLM and verl that init has adopted, and of Ray where no raylet runs that they may belong to."""
    processes = list(psutil.process_iter(["pid", "ppid", "name", "cmdline"]))
    ray_runs = any(process.info["name"] == "raylet" for process in processes)
    for process in processes:
        argv = process.info["cmdline"] or []
        ours = is_engine_or_trainer(argv) or (is_ray(argv) and not ray_runs)
        if ours and process.info["ppid"] == 1:
            yield Orphan(process.info["pid"], " ".join(argv)[:120], mark(process))


def is_ray(argv: list[str]) -> bool:
    """Whether a command line is one of Ray's processes."""
    return bool(argv) and (argv[0].startswith(RAY_TITLES) or Path(argv[0]).name in RAY_PROGRAMS)


def is_engine_or_trainer(argv: list[str]) -> bool:
    """Whether a command line is vLLM's engine, which names itself, or verl's driver."""
    return bool(argv) and (argv[0].startswith(ENGINE_TITLES) or any(one.endswith(TRAINER) for one in argv))


def shares_memory_with_unseen_processes() -> bool:
    """Whether this is a container with the host's /dev/shm but without the host's processes."""
    return os.readlink("/proc/self/ns/ipc") == HOST_IPC and os.readlink("/proc/self/ns/pid") != HOST_PID


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
