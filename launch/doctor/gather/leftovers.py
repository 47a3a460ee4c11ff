"""What runs that were killed left behind: files that no living process uses, and processes without a parent.

Only looks. A segment is in use while a process maps it or has it open, a socket while one is bound to it, a session of
Ray while a process names its folder.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from launch.doctor.facts import Leftovers, Orphan
from launch.doctor.gather.ray import run_of

SEGMENTS = ("psm_*", "torch_*", "vllm*", "verl_weights_*", "plasma*")
SOCKETS = ("rl-colocate-zmq-*.sock",)
SESSIONS = ("ray/session_2*", "aq-*/session_2*")
RAY_TITLES, RAY_PROGRAMS = ("ray::",), ("raylet", "gcs_server")
ENGINE_TITLES, TRAINER = ("VLLM::", "VLLMEngineCore", "EngineCore"), "main_ppo"
HOST_IPC, HOST_PID = "ipc:[4026531839]", "pid:[4026531836]"  # Linux numbers the host's own namespaces so


def leftovers(memory: Path = Path("/dev/shm"), temporary: Path = Path("/tmp")) -> Leftovers:
    """What lies in both folders and is not used."""
    if shares_memory_with_unseen_processes():
        return Leftovers(hidden=True, orphans=tuple(orphans()))
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
        orphans=tuple(orphans()),
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


def orphans() -> Iterator[Orphan]:
    """Processes of vLLM and verl that init has adopted, and of Ray where no raylet runs that they may belong to."""
    processes = list(psutil.process_iter(["pid", "ppid", "name", "cmdline"]))
    ray_runs = any(process.info["name"] == "raylet" for process in processes)
    for process in processes:
        argv = process.info["cmdline"] or []
        ours = is_engine_or_trainer(argv) or (is_ray(argv) and not ray_runs)
        if ours and process.info["ppid"] == 1:
            yield Orphan(process.info["pid"], " ".join(argv)[:120], run_of(process))


def is_ray(argv: list[str]) -> bool:
    """Whether a command line is one of Ray's processes."""
    return bool(argv) and (argv[0].startswith(RAY_TITLES) or Path(argv[0]).name in RAY_PROGRAMS)


def is_engine_or_trainer(argv: list[str]) -> bool:
    """Whether a command line is vLLM's engine, which names itself, or verl's driver."""
    return bool(argv) and (argv[0].startswith(ENGINE_TITLES) or any(one.endswith(TRAINER) for one in argv))


def shares_memory_with_unseen_processes() -> bool:
    """Whether this is a container with the host's /dev/shm but without the host's processes."""
    return os.readlink("/proc/self/ns/ipc") == HOST_IPC and os.readlink("/proc/self/ns/pid") != HOST_PID
