"""Checks of the machine: shared memory, /tmp, memory, and harmful environment variables."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from launch.doctor.checking import Finding, check, error, ok, warning
from launch.doctor.facts import GIB, MIB, Facts, Machine, Wanted
from launch.recipes.stacks import pins

CGROUP_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 2, version 1
TEMPORARY = "/tmp"
LEAST_SHARED_GIB = 1
SHARED_GIB = {"none": 1, "gpu": 16, "npu": 16}
LEAST_TEMPORARY_GIB, TEMPORARY_GIB = 1, 5
FULLEST, MOST_USED = "RAY_local_fs_capacity_threshold", 0.95  # Ray's variable, and its default
ALLOCATORS = {"npu": ("PYTORCH_NPU_ALLOC_CONF",), "gpu": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
BLOCKING = ("ASCEND_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING")


def machine(root: Path = Path("/"), temporary: str = TEMPORARY) -> Machine:
    """Return the current state of the machine; limits of this container are looked up below `root`."""
    memory = psutil.virtual_memory()
    total = min([memory.total, *cgroup_limits(root)])
    shared, disk = shutil.disk_usage("/dev/shm"), shutil.disk_usage(temporary)
    return Machine(
        shared_memory=(shared.total, shared.free),
        temporary=(disk.total, disk.free),
        unusable=unusable(temporary),
        memory=(total, min(memory.available, total)),
    )


def cgroup_limits(root: Path) -> list[int]:
    """Return the cgroup limits on this container's memory, in bytes; none outside of a container."""
    texts = [(root / file).read_text(errors="replace").strip() for file in CGROUP_LIMITS if (root / file).is_file()]
    return [int(text) for text in texts if re.fullmatch("[0-9]{1,19}", text)]


def unusable(folder: str) -> str | None:
    """Return why Ray, torch and Triton cannot write and execute temporary files in a folder; None if they can."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"cannot be written by uid {os.getuid()}"
    return "is mounted noexec, so what is compiled there cannot be loaded" if noexec(folder) else None


def noexec(folder: str) -> bool:
    """Return whether files in a folder cannot be executed."""
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


@check("machine.shm")
def shm(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    total, free = facts.machine.shared_memory
    need = SHARED_GIB[pins(wanted.stack).devices]
    unit, name = (GIB, "GiB") if total >= GIB else (MIB, "MiB")
    text = f"{free / unit:.1f} of {total / unit:.1f} {name} free in /dev/shm"
    if free >= need * GIB:
        yield ok(text)
        return
    fix = f"docker run --shm-size={4 * need}g, or mount -o remount,size={4 * need}g /dev/shm"
    if total >= need * GIB:
        fix = "ls -lS /dev/shm shows what fills it: remove your own files that are not in use"
    level = error if free < LEAST_SHARED_GIB * GIB else warning
    yield level(f"{text}; {need} GiB needed", fix)


@check("machine.tmp")
def tmp(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    (total, free), why = facts.machine.temporary, facts.machine.unusable
    used, text = 1 - free / total, f"{free / GIB:.0f} GiB free in {TEMPORARY}"
    most = float(facts.variables.get(FULLEST, MOST_USED))
    if why:
        yield error(f"{TEMPORARY} {why}", "docker run --tmpfs /tmp:exec, or have the host's /tmp fixed")
    elif free < TEMPORARY_GIB * GIB:
        level = error if free < LEAST_TEMPORARY_GIB * GIB else warning
        yield level(f"{text}; {TEMPORARY_GIB} needed", "remove old sessions of Ray in /tmp/ray and /tmp/aq-*")
    elif used > most:
        what = f"{text}, on a disk that is {used:.1%} full: above {most:.0%} Ray fails instead of spilling objects"
        yield warning(what, f"free some of it, or export {FULLEST}=0.99")
    else:
        yield ok(text)


@check("machine.memory")
def memory(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    total, available = facts.machine.memory
    text = f"{available / GIB:.0f} of {total / GIB:.0f} GiB available"
    need = wanted.host_gib
    if need is None or available >= need * GIB:
        yield ok(text)
    elif total >= need * GIB:
        yield warning(f"{text}; the recipe needs {need}", "end what uses it: ps aux --sort=-rss | head")
    else:
        yield error(f"{text}; the recipe needs {need}", "take a host with more memory, or raise the container's limit")


@check("machine.variables")
def variables(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    for name in BLOCKING:
        if (value := facts.variables.get(name, "0")) not in ("", "0"):
            yield warning(f"{name}={value}: every operator waits for the previous one", f"unset {name}")
    for name in ALLOCATORS.get(pins(wanted.stack).devices, ()):
        value = facts.variables.get(name, "")
        if "expandable_segments:true" in value.lower().replace(" ", "") and wanted.sleeps:
            rest = ",".join(one for one in value.split(",") if "expandable_segments" not in one)
            fix = f"export {name}={rest}" if rest else f"unset {name}"
            yield error(f"{name}={value}: vLLM's sleep mode has its own allocator and rejects this setting", fix)
