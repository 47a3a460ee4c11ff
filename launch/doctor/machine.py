"""Checks of the machine: shared memory, /tmp, memory, and harmful environment variables."""

import os
import shutil
from collections.abc import Iterator

from ascend_quant.processes.memory import memory_here
from launch.doctor.checking import Finding, check, error, ok, warning
from launch.doctor.facts import GIB, MIB, Facts

TEMPORARY, SHARED = "/tmp", "/dev/shm"
LEAST_SHARED_GIB = 1
SHARED_GIB = {"none": 1, "gpu": 16, "npu": 16}
LEAST_TEMPORARY_GIB, TEMPORARY_GIB = 1, 5
FULLEST, MOST_USED = "RAY_local_fs_capacity_threshold", 0.95  # Ray's variable, and its default
ALLOCATORS = {"npu": ("PYTORCH_NPU_ALLOC_CONF",), "gpu": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
BLOCKING = ("ASCEND_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING")


@check("machine.shm")
def shm(facts: Facts) -> Iterator[Finding]:
    disk, need = shutil.disk_usage(SHARED), SHARED_GIB[facts.kind]
    unit, name = (GIB, "GiB") if disk.total >= GIB else (MIB, "MiB")
    text = f"{disk.free / unit:.1f} of {disk.total / unit:.1f} {name} free in {SHARED}"
    if disk.free >= need * GIB:
        yield ok(text)
        return
    fix = f"docker run --shm-size={4 * need}g, or mount -o remount,size={4 * need}g {SHARED}"
    if disk.total >= need * GIB:
        fix = f"ls -lS {SHARED} shows what fills it: remove your own files that are not in use"
    level = error if disk.free < LEAST_SHARED_GIB * GIB else warning
    yield level(f"{text}; {need} GiB needed", fix)


@check("machine.tmp")
def tmp(facts: Facts) -> Iterator[Finding]:
    disk = shutil.disk_usage(TEMPORARY)
    used, text = 1 - disk.free / disk.total, f"{disk.free / GIB:.0f} GiB free in {TEMPORARY}"
    most = float(facts.variables.get(FULLEST, MOST_USED))
    if why := unusable(TEMPORARY):
        yield error(f"{TEMPORARY} {why}", "docker run --tmpfs /tmp:exec, or have the host's /tmp fixed")
    elif disk.free < TEMPORARY_GIB * GIB:
        level = error if disk.free < LEAST_TEMPORARY_GIB * GIB else warning
        yield level(f"{text}; {TEMPORARY_GIB} needed", "remove old sessions of Ray in /tmp/ray and /tmp/aq-*")
    elif used > most:
        what = f"{text}, on a disk that is {used:.1%} full: above {most:.0%} Ray fails instead of spilling objects"
        yield warning(what, f"free some of it, or export {FULLEST}=0.99")
    else:
        yield ok(text)


def unusable(folder: str) -> str | None:
    """Return why Ray, torch and Triton cannot write and execute temporary files in a folder; None if they can."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"cannot be written by uid {os.getuid()}"
    noexec = os.statvfs(folder).f_flag & os.ST_NOEXEC
    return "is mounted noexec, so what is compiled there cannot be loaded" if noexec else None


@check("machine.memory")
def memory(facts: Facts) -> Iterator[Finding]:
    (total, available), need = memory_here(), facts.wanted.host_gib
    text = f"{available / GIB:.0f} of {total / GIB:.0f} GiB available"
    if need is None or available >= need * GIB:
        yield ok(text)
    elif total >= need * GIB:
        yield warning(f"{text}; the recipe needs {need}", "end what uses it: ps aux --sort=-rss | head")
    else:
        yield error(f"{text}; the recipe needs {need}", "take a host with more memory, or raise the container's limit")


@check("machine.variables")
def variables(facts: Facts) -> Iterator[Finding]:
    for name in BLOCKING:
        if (value := facts.variables.get(name, "0")) not in ("", "0"):
            yield warning(f"{name}={value}: every operator waits for the previous one", f"unset {name}")
    for name in ALLOCATORS.get(facts.kind, ()):
        value = facts.variables.get(name, "")
        if "expandable_segments:true" in value.lower().replace(" ", "") and facts.wanted.sleeps:
            rest = ",".join(one for one in value.split(",") if "expandable_segments" not in one)
            fix = f"export {name}={rest}" if rest else f"unset {name}"
            yield error(f"{name}={value}: vLLM's sleep mode has its own allocator and rejects this setting", fix)
