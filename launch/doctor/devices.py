"""Checks of devices: they are present and healthy, and their memory is free."""

import os
import re
from collections.abc import Iterator

from ascend_quant.recipes.keys import RANKS
from launch.doctor.checking import Finding, error, warning
from launch.doctor.drivers import NOT_ON_PATH
from launch.doctor.facts import Facts
from launch.plan.start import ASCEND_DRIVER, NPU_SMI

MOUNT_DRIVER = "docker run " + " ".join(f"-v {one}:{one}:ro" for one in (ASCEND_DRIVER, "/usr/local/dcmi", NPU_SMI[0]))
NPU_FILES = ("davinci_manager", "devmm_svm", "hisi_hdc")
IN_USE = ("-8020", "-8005")  # errors of dcmi, which does not start if another container has one of these devices
BUSY_MIB = 4096  # an idle A3 die shows 3.4 GiB in use, an idle A2 die 3.3
VISIBLE = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "gpu": "CUDA_VISIBLE_DEVICES"}


def present(facts: Facts) -> Iterator[Finding]:
    """Check that the driver and enough devices are here (vllm-ascend issue 2698, aibrix issue 927)."""
    kind, there = facts.kind, facts.devices
    if kind == "none":
        return
    if kind == "npu" and (missing := _missing(facts.device_files)):
        mapped = " ".join(f"--device {file}" for file in missing)
        fix = f"on a host install driver and firmware; in a container: docker run {mapped}"
        yield error(f"{', '.join(missing)} missing", fix)
    if not there.found:
        yield error(f"no devices: {there.problem}", _without_devices(kind, there.problem or ""))
    else:
        yield from _too_few(facts, VISIBLE[kind])


def _missing(files: list[str]) -> list[str]:
    """Return the device files of NPUs that a container must have, and has not."""
    first = [] if any(re.match("davinci[0-9]", name) for name in files) else ["davinci0"]
    return [f"/dev/{name}" for name in (*first, *NPU_FILES) if name not in files]


def _without_devices(kind: str, problem: str) -> str:
    """Return what to do if the driver lists no device."""
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


def _too_few(facts: Facts, variable: str) -> Iterator[Finding]:
    """Yield an error if the run's devices are not here, or if the variable hides some of them."""
    there, wanted = facts.devices.numbers, facts.wanted.devices
    if isinstance(wanted, list):
        if absent := sorted(set(wanted) - set(there)):
            yield error(f"there is no device {absent}, only {there}", "correct devices in the inventory")
            return
        wanted = len(wanted)
    # on a host of an inventory the launcher sets the variable, unless the user does
    visible = (facts.variables if facts.wanted.address is None else facts.wanted.environment).get(variable)
    usable = len(there) if visible is None else len([one for one in visible.split(",") if one.strip()])
    if wanted != "auto" and usable < wanted:
        limit = "" if visible is None else f" with {variable}={visible}"
        what = f"{usable} of {len(there)} x {facts.devices.chip} can be used{limit}; {wanted} needed"
        yield error(what, f"-- trainer.n_gpus_per_node={usable}, or unset {variable}")


def free(facts: Facts) -> Iterator[Finding]:
    """Check that devices are healthy, not in use, and large enough (vllm issue 20305)."""
    found, chosen, tool = facts.devices.found, facts.wanted.devices, facts.devices.tool
    if isinstance(chosen, list):  # the others were excluded deliberately
        found = [device for device in found if device.number in chosen]
    for device in found:
        name = f"device {device.number}"
        if device.health != "OK":
            level = warning if device.health == "Warning" else error
            ask = "npu-smi info -t health" if facts.kind == "npu" else "nvidia-smi -q"
            fix = f"{ask} -i {device.number}; leave it out with `devices` in the inventory"
            yield level(f"{name}: {device.health}", fix)
        if device.total_mib is None:
            fix = f"run {tool} by hand; an unhealthy device does not show it"
            yield warning(f"{tool} does not show how much memory {name} has", fix)
        elif (device.used_mib or 0) > BUSY_MIB:
            fix = f"{tool} lists the processes that hold it, on the host rather than in a container: end your own"
            yield warning(f"{name}: {device.used_mib} MiB in use", fix)
    least = min((round(device.total_mib / 1024) for device in found if device.total_mib is not None), default=None)
    needed = facts.wanted.device_gib
    if least is not None and needed is not None and least < needed:
        what = f"a device has {least} GiB; the recipe needs {needed}"
        yield error(what, f"take a recipe for smaller devices, or more of them (-- {RANKS}=..)")
