"""Checks of devices and drivers: devices are present and healthy, and their memory is free."""

import os
from collections.abc import Iterator

from ascend_quant.recipes.keys import RANKS
from launch.doctor.checking import Finding, check, error, ok, warning
from launch.doctor.drivers import NOT_ON_PATH, Devices
from launch.doctor.facts import Facts
from launch.plan.start import ASCEND_DRIVER, NPU_SMI

MOUNT_DRIVER = "docker run " + " ".join(f"-v {one}:{one}:ro" for one in (ASCEND_DRIVER, "/usr/local/dcmi", NPU_SMI[0]))
NPU_FILES = ("davinci_manager", "devmm_svm", "hisi_hdc")
IN_USE = ("-8020", "-8005")  # errors of dcmi, which does not start if another container has one of these devices
BUSY_MIB = 4096  # an idle A3 die shows 3.4 GiB in use, an idle A2 die 3.3
VISIBLE = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "gpu": "CUDA_VISIBLE_DEVICES"}


@check("devices.present")
def present(facts: Facts) -> Iterator[Finding]:
    kind, there = facts.kind, facts.devices
    if kind == "none":
        return
    missing = [f"/dev/{name}" for name in NPU_FILES if name not in there.files] if kind == "npu" else []
    if kind == "npu" and not any(name.removeprefix("davinci").isdecimal() for name in there.files):
        missing = ["/dev/davinci0", *missing]
    if missing:
        mapped = " ".join(f"--device {file}" for file in missing)
        fix = f"on a host install driver and firmware; in a container: docker run {mapped}"
        yield error(f"{', '.join(missing)} missing", fix)
    if not there.found:
        yield error(f"no devices: {there.problem}", _without_devices(kind, there.problem or ""))
        return
    if there.problem:
        yield warning(there.problem, f"run {there.tool} by hand")
    yield _counted(facts, VISIBLE[kind])


def _without_devices(kind: str, problem: str) -> str:
    if kind == "gpu":
        return "install the NVIDIA driver; in a container: docker run --gpus all, with the NVIDIA Container Toolkit"
    if any(code in problem for code in IN_USE):
        return (
            "another container uses one of these NPUs: stop it (docker ps); or map only other NPUs, with --device or "
            "with `devices` in the inventory; or share each on the host, as root and until it restarts: npu-smi set -t "
            "device-share -i NPU -c CHIP -d 1"
        )
    if problem.endswith(NOT_ON_PATH):
        return f"export PATH=$PATH:{os.path.dirname(problem.split()[0])}; for ssh, in that login's ~/.bashrc"
    return (
        f"on a host install the Ascend driver and source its set_env.sh; in a container: {MOUNT_DRIVER} "
        f"(some hosts have {NPU_SMI[1]})"
    )


def _counted(facts: Facts, variable: str) -> Finding:
    there, wanted = facts.devices.numbers, facts.wanted.devices
    text = f"{len(there)} x {facts.devices.found[0].name}, driver {facts.devices.driver or 'unknown'}"
    if isinstance(wanted, list) and (absent := sorted(set(wanted) - set(there))):
        return error(f"{text}: there is no device {absent}, only {there}", "correct devices in the inventory")
    # on a host of an inventory the launcher sets the variable, unless the user does
    visible = (facts.variables if facts.wanted.address is None else facts.wanted.environment).get(variable)
    usable = len(there) if visible is None else len([one for one in visible.split(",") if one.strip()])
    needed = len(wanted) if isinstance(wanted, list) else wanted
    if needed != "auto" and usable < needed:
        limit = f", and {variable}={visible} leaves {usable}" if visible is not None and usable < len(there) else ""
        fix = f"-- trainer.n_gpus_per_node={usable}, or unset {variable}"
        return error(f"{text}{limit}; {needed} needed", fix)
    return ok(text)


@check("devices.free")
def free(facts: Facts) -> Iterator[Finding]:
    found, chosen = facts.devices.found, facts.wanted.devices
    if isinstance(chosen, list):  # the others were excluded deliberately
        found = tuple(device for device in found if device.number in chosen)
    ask = "npu-smi info -t health" if facts.devices.tool == "npu-smi" else "nvidia-smi -q"
    problems = []
    for device in found:
        if device.health != "OK":
            level = warning if device.health == "Warning" else error
            fix = f"{ask} -i {device.number}; leave it out with `devices` in the inventory"
            problems.append(level(f"device {device.number}: {device.health}", fix))
    problems += [*_held(facts.devices), *_too_small(facts.devices, facts.wanted.device_gib)]
    yield from problems
    if found and not problems:
        yield ok(f"{len(found)} healthy, {_gib(found[0].total_mib)} GiB each, not in use")


def _held(devices: Devices) -> Iterator[Finding]:
    """Yield memory that other processes hold, or whose holder is unknown."""
    for holder in devices.holders:
        yield warning(
            f"device {holder.device}: {holder.mib} MiB held by {holder.name or 'a process'} ({holder.pid})",
            f"if it is yours: kill {holder.pid}; in a container that is its number on the host",
        )
    held = {holder.device for holder in devices.holders}
    for device in devices.found:
        if device.total_mib is None:
            what = f"{devices.tool} does not show how much memory device {device.number} has"
            yield warning(what, f"run {devices.tool} by hand; an unhealthy device does not show it")
        elif (device.used_mib or 0) > BUSY_MIB and device.number not in held:
            what = f"device {device.number}: {device.used_mib} MiB in use by a process that is not visible from here"
            yield warning(what, f"look on the host, not in a container: {devices.tool}")


def _too_small(devices: Devices, needed: int | None) -> Iterator[Finding]:
    least = min((_gib(device.total_mib) for device in devices.found if device.total_mib is not None), default=None)
    if least is not None and needed is not None and least < needed:
        what = f"a device has {least} GiB; the recipe needs {needed}"
        yield error(what, f"take a recipe for smaller devices, or more of them (-- {RANKS}=..)")


def _gib(mib: int | None) -> int:
    return round((mib or 0) / 1024)
