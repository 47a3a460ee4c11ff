"""The shell line that starts a process of this project on a host, directly or in a container.

A container gets only the NPUs of the run: without `npu-smi set -t device-share`, an NPU belongs to one container, and
dcmi fails with error -8020 in the next container that maps it. A container gets all GPUs, and CUDA_VISIBLE_DEVICES
names those of the run. Mounts use --mount type=bind, because -v creates an empty folder if the path is misspelt.
"""

import shlex
import sys
from collections.abc import Sequence

from launch import IS_CHECKOUT
from launch.cluster.inventory import Devices, Inventory
from launch.plan.job import project_of
from launch.system.processes import OPEN_FILES

NODE = ("-m", "launch", "node")
PYTHON = ".venv/bin/python" if IS_CHECKOUT else sys.executable  # outside a checkout, all hosts have the same image
ASCEND_DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
ASCEND_DRIVER = "/usr/local/Ascend/driver"
NPU_SMI = ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi")  # the driver installs it in one of these folders
ASCEND_ADDRESSES = "/etc/hccn.conf"  # addresses of the NPUs' own network; an A3 may not have this file
ASCEND_FILES = ("/usr/local/dcmi", *NPU_SMI, "/etc/ascend_install.info", ASCEND_ADDRESSES)  # if the host has them
RDMA_DEVICES = "/dev/infiniband"  # for a folder, docker maps all devices in it


def start_line(
    inventory: Inventory,
    host: int,
    argv: Sequence[str] = NODE,
    run: str | None = None,
    shm: int = 64,
    devices: Devices = "auto",
) -> str:
    """Return the shell line that runs the project's Python with `argv` on a host.

    Args:
        host: the number of the host in the inventory.
        run: the run's id, which marks the process and names the container, so that both can be found; None: no mark.
        shm: size limit of the container's /dev/shm in GiB; memory is allocated only when it is used.
        devices: the NPUs that a container gets: their numbers, how many, or auto for all.
    """
    if inventory.image is not None:
        return f"exec {container(inventory, host, argv, run, shm, devices)}"
    command = [*(["env", *marks(run)] if run else []), inventory.python or PYTHON, *argv]
    return f"cd {shlex.quote(project_of(inventory))} && exec {shlex.join(command)}"


def container_name(run: str, host: int) -> str:
    """Return the name of a run's container on its host."""
    return f"ascend-quant-{run}-{host}"


def marks(run: str) -> list[str]:
    """Return the variables that mark a run's processes; SPT_NOENV keeps setproctitle from overwriting them."""
    return [f"ASCEND_QUANT_RUN={run}", "SPT_NOENV=1"]


def container(
    inventory: Inventory, host: int, argv: Sequence[str], run: str | None, shm: int, devices: Devices = "auto"
) -> str:
    """Return the `docker run` command of a host, as a shell line."""
    options = []
    if run:
        options += ["--name", container_name(run, host), "--label", f"ascend-quant.run={run}"]
        options += [part for mark in marks(run) for part in ("-e", mark)]
    options += ["--workdir", inventory.project] if inventory.project else []
    words = shlex.join([inventory.image, inventory.python or "python", *argv])
    begin = ["--rm", "-i", "--init", "--network", "host", "--shm-size", f"{shm}g", *limits(inventory.stack), *options]
    begin += [part for mount in mounts(inventory) for part in ("--mount", mount)]
    return " ".join(["docker run", shlex.join(begin), *of_devices(inventory.stack, devices), words])


def limits(stack: str) -> list[str]:
    """Return docker's limits of open files and of locked memory (for RDMA); none on CPUs, where docker may refuse."""
    if stack == "cpu":
        return []
    return ["--ulimit", f"nofile={OPEN_FILES}:{OPEN_FILES}", "--ulimit", "memlock=-1:-1"]


def mounts(inventory: Inventory) -> list[str]:
    """List the bind mounts of every host's container: the driver's, then the inventory's."""
    driver = [f"{ASCEND_DRIVER}:{ASCEND_DRIVER}:ro"] if inventory.stack.startswith("ascend") else []
    return [bind(mount) for mount in [*driver, *inventory.mounts]]


def bind(mount: str) -> str:
    """Convert a mount from /host:/container[:ro] to the syntax of --mount."""
    source, target, *readonly = mount.split(":")
    return ",".join([f"type=bind,source={source},target={target}", *(["readonly"] if readonly else [])])


def of_devices(stack: str, chosen: Devices) -> list[str]:
    """Return docker's options for devices, driver files and RDMA; the host's shell tests which of them exist."""
    if stack.startswith("ascend"):
        return [
            shlex.join(f"--device={path}" for path in ASCEND_DEVICES),
            npus(chosen),
            *(if_there(path, f"--mount {bind(f'{path}:{path}:ro')}") for path in ASCEND_FILES),
        ]
    if stack.startswith("cuda"):
        return ["--gpus all", if_there(RDMA_DEVICES, f"--device={RDMA_DEVICES}")]
    return []


def npus(chosen: Devices) -> str:
    """Return docker's options for NPUs; for a count, those with the lowest numbers, which a node uses, too
    (launch/nodes/checks.py)."""
    if isinstance(chosen, list):
        return shlex.join(f"--device=/dev/davinci{number}" for number in chosen)
    first = f" | head -n {chosen}" if isinstance(chosen, int) else ""
    return f"$(ls -v /dev/davinci[0-9]*{first} | sed s/^/--device=/)"


def if_there(path: str, option: str) -> str:
    """Return an option that is used only if the host has this file, as the container would not start otherwise."""
    return f"$(test ! -e {path} || echo {option})"
