"""Checks of the machine: shared memory, /tmp, memory, and harmful environment variables."""

import os
import shutil
from collections.abc import Iterator

from ascend_quant.processes.memory import memory_here
from launch.doctor.checking import Finding, error, warning
from launch.doctor.facts import GIB, Facts

TEMPORARY, SHARED = "/tmp", "/dev/shm"
SHARED_GIB = {"none": 1, "gpu": 16, "npu": 16}
LEAST_GIB, TEMPORARY_GIB = 1, 5
FULLEST, MOST_USED = "RAY_local_fs_capacity_threshold", 0.95  # Ray's variable, and its default
ALLOCATORS = {"npu": "PYTORCH_NPU_ALLOC_CONF", "gpu": "PYTORCH_ALLOC_CONF"}
BLOCKING = ("ASCEND_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING")


def shm(facts: Facts) -> Iterator[Finding]:
    """Check that shared memory is large enough; Docker gives 64 MB (vllm issue 1710, LlamaFactory issue 7315)."""
    need = SHARED_GIB[facts.kind]
    fix = f"docker run --shm-size={4 * need}g, or mount -o remount,size={4 * need}g {SHARED}"
    if shutil.disk_usage(SHARED).total >= need * GIB:
        fix = f"ls -lS {SHARED} shows what fills it: remove your own files that are not in use"
    yield from lacking_room(SHARED, need, fix)


def lacking_room(folder: str, need: int, fix: str) -> Iterator[Finding]:
    """Yield a problem if less than `need` GiB are free: an error if next to nothing is."""
    free = shutil.disk_usage(folder).free
    if free < need * GIB:
        level = error if free < LEAST_GIB * GIB else warning
        yield level(f"{free / GIB:.1f} GiB free in {folder}; {need} needed", fix)


def tmp(facts: Facts) -> Iterator[Finding]:
    """Check that /tmp can be used, and that Ray will spill objects there (ray issues 36959 and 15595)."""
    disk, most = shutil.disk_usage(TEMPORARY), float(facts.variables.get(FULLEST, MOST_USED))
    if why := unusable(TEMPORARY):
        yield error(f"{TEMPORARY} {why}", "docker run --tmpfs /tmp:exec, or have the host's /tmp fixed")
    elif disk.free < TEMPORARY_GIB * GIB:
        yield from lacking_room(TEMPORARY, TEMPORARY_GIB, "remove old sessions of Ray in /tmp/ray and /tmp/aq-*")
    elif disk.free / disk.total < 1 - most:
        what = f"{TEMPORARY} is on a disk that is {1 - disk.free / disk.total:.1%} full: above {most:.0%} Ray fails "
        yield warning(f"{what}instead of spilling objects", f"free some of it, or export {FULLEST}=0.99")


def unusable(folder: str) -> str | None:
    """Return why Ray, torch and Triton cannot write and execute temporary files in a folder; None if they can."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"cannot be written by uid {os.getuid()}"
    noexec = os.statvfs(folder).f_flag & os.ST_NOEXEC
    return "is mounted noexec, so what is compiled there cannot be loaded" if noexec else None


def memory(facts: Facts) -> Iterator[Finding]:
    """Check that the host has the memory that the recipe needs (verl issues 429 and 2950)."""
    (total, available), need = memory_here(), facts.wanted.host_gib
    if need is None or available >= need * GIB:
        return
    what = f"{available / GIB:.0f} of {total / GIB:.0f} GiB available; the recipe needs {need}"
    if total >= need * GIB:
        yield warning(what, "end what uses it: ps aux --sort=-rss | head")
    else:
        yield error(what, "take a host with more memory, or raise the container's limit")


def variables(facts: Facts) -> Iterator[Finding]:
    """Check for variables that slow a run down or stop it.

    A sleep mode's allocator cannot have expandable segments (pytorch issue 147851). vLLM 0.23 switches them off by
    itself, but only if PYTORCH_CUDA_ALLOC_CONF switches them on.
    """
    for name in BLOCKING:
        if (value := facts.variables.get(name, "0")) not in ("", "0"):
            yield warning(f"{name}={value}: every operator waits for the previous one", f"unset {name}")
    name = ALLOCATORS.get(facts.kind, "")
    value = facts.variables.get(name, "")
    if facts.wanted.sleeps and "expandable_segments:true" in value.lower().replace(" ", ""):
        what = f"{name}={value}: vLLM's sleep mode has its own allocator, which this setting does not suit"
        yield error(what, f"remove expandable_segments from {name}")
