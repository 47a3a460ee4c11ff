"""Devices and their drivers: are they there, are they well, is their memory free?"""

from collections.abc import Iterator

from launch.doctor.checking import Said, check, error, ok, warning
from launch.doctor.facts import Facts
from launch.doctor.requirements import Wanted
from launch.stacks import pins

NPU_FILES = ("davinci_manager", "devmm_svm", "hisi_hdc")
BUSY_MIB = 4096  # an A3 die with nothing on it shows 3.4 GiB in use, an A2's 3.3
VISIBLE = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "gpu": "CUDA_VISIBLE_DEVICES"}


@check(
    "devices.present",
    looks_at=(
        "`npu-smi info` or `nvidia-smi`, the files in `/dev` by which processes reach NPUs, and the number of devices "
        "that the inventory or the recipe wants",
        "`npu-smi info` 或 `nvidia-smi`、`/dev` 中访问 NPU 的设备文件，以及 inventory 或 recipe 要求的设备数",
    ),
    means=(
        "without devices Ray has no NPU or GPU to give, and verl waits for them for ever",
        "没有设备时 Ray 没有可分配的 NPU/GPU，verl 会一直等待",
    ),
    fix=(
        "install the driver; in a container map the device files and mount the driver; or want fewer devices",
        "安装驱动；容器内需映射设备文件并挂载驱动；或减少所需设备数",
    ),
)
def present(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    kind, devices = pins(wanted.stack).devices, facts.devices
    if kind == "none":
        return
    if not devices.found:
        yield error(f"no devices: {devices.problem}", _without_devices(kind, devices.files))
        return
    if devices.problem:
        yield warning(devices.problem, f"run {devices.tool} by hand")
    missing = [name for name in NPU_FILES if name not in devices.files] if kind == "npu" else []
    if missing:
        files = ", ".join(f"/dev/{name}" for name in missing)
        yield error(
            f"{files} missing", f"map into the container: {' '.join(f'--device /dev/{name}' for name in missing)}"
        )
    yield _numbers(facts, wanted, VISIBLE[kind])


def _without_devices(kind: str, files: tuple[str, ...]) -> str:
    if kind == "gpu":
        return "install the NVIDIA driver; in a container start it with --gpus all"
    if any(name.startswith("davinci") for name in files):
        return (
            "the device files are there: source the driver's set_env.sh, and in a container mount "
            "/usr/local/bin/npu-smi, /usr/local/dcmi and /usr/local/Ascend/driver"
        )
    return "install the Ascend HDK driver and firmware; in a container map /dev/davinci0 and so on"


def _numbers(facts: Facts, wanted: Wanted, variable: str) -> Said:
    there = [device.number for device in facts.devices.found]
    text = f"{len(there)} x {facts.devices.found[0].name}, driver {facts.devices.driver or 'unknown'}"
    if isinstance(wanted.devices, list) and (absent := sorted(set(wanted.devices) - set(there))):
        return error(f"{text}: no device {_list(absent)}, there are {_list(there)}", "correct devices in the inventory")
    visible = facts.variables.get(variable)
    usable = len(there) if visible is None else len([one for one in visible.split(",") if one.strip()])
    if wanted.count is not None and usable < wanted.count:
        limit = f", and {variable}={visible} leaves {usable}" if visible is not None and usable < len(there) else ""
        return error(f"{text}{limit}; {wanted.count} wanted", f"--set devices_per_node={usable}, or unset {variable}")
    return ok(text)


@check(
    "devices.health",
    looks_at=(
        "the health that the driver reports of each device: npu-smi's word, or uncorrected memory errors of a GPU",
        "驱动报告的每个设备的健康状态：npu-smi 的 Health 列，或 GPU 的不可纠正内存错误数",
    ),
    means=(
        "a device that is not well fails in the middle of a run, or slows all others down",
        "不健康的设备会在训练中途出错，或拖慢其他设备",
    ),
    fix=(
        "ask the driver what is wrong, reset the device while nobody uses it, or leave it out",
        "用驱动工具查询原因，在无人使用时复位该设备，或不使用它",
    ),
)
def health(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    ill = [device for device in facts.devices.found if device.health != "OK"]
    ask = "npu-smi info -t health" if facts.devices.tool == "npu-smi" else "nvidia-smi -q"
    for device in ill:
        level = warning if device.health == "Warning" else error
        fix = f"{ask} -i {device.number}; leave it out with `devices` in the inventory"
        yield level(f"device {device.number}: {device.health}", fix)
    if facts.devices.found and not ill:
        yield ok(f"all {len(facts.devices.found)} OK")


@check(
    "devices.memory",
    looks_at=(
        "the free memory of each device, and the processes that hold some of it; what the recipe needs of each device",
        "每个设备的空闲显存、占用显存的进程，以及 recipe 对每个设备的需求",
    ),
    means=(
        "memory that another process holds is missing in the engine's cache, or the run ends out of memory",
        "被其他进程占用的显存会挤占推理引擎的缓存，或使训练显存不足",
    ),
    fix=(
        "end the processes that are yours, ask the owners of the others, or use other devices",
        "结束属于自己的进程，联系其他进程的所有者，或改用其他设备",
    ),
)
def memory(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    found, need = facts.devices.found, wanted.device_gib
    if not found:
        return
    for holder in facts.devices.holders:
        yield warning(
            f"device {holder.device}: {holder.mib} MiB held by {holder.name or 'a process'} ({holder.pid})",
            f"if it is yours: kill {holder.pid}; in a container that is its number on the host",
        )
    held = {holder.device for holder in facts.devices.holders}
    for device in found:
        if (device.used_mib or 0) > BUSY_MIB and device.number not in held:
            what = f"device {device.number}: {device.used_mib} MiB in use, by a process that cannot be seen from here"
            yield warning(what, f"look on the host, not in a container: {facts.devices.tool}")
    if silent := [device.number for device in found if device.total_mib is None]:
        what = f"{facts.devices.tool} does not say how much memory device {_list(silent)} has"
        yield warning(what, f"run {facts.devices.tool} by hand; a device that is not well does not tell it")
    told = [device for device in found if device.total_mib is not None]
    if not told:
        return
    least = min(told, key=lambda device: device.total_mib)
    if need is not None and round(least.total_mib / 1024) < need:
        what = f"device {least.number} has {least.total_mib / 1024:.0f} GiB; the recipe needs {need}"
        yield error(what, "take a recipe for smaller devices, or more of them (--set rollout.tensor_parallel=..)")
    elif not facts.devices.holders and not silent:
        yield ok(f"{least.total_mib / 1024:.0f} GiB each, held by nobody")


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
