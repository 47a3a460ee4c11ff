"""One thing that is wrong with a host, for each way in which a check can say so."""

from dataclasses import replace
from typing import Any, NamedTuple

from doctor_facts import NPU_FILES, packages, well

from launch.doctor.checking import Check
from launch.doctor.checks import (
    correction,
    devices,
    kernels,
    leftovers,
    links,
    network,
    paths,
    ray,
    system,
    variables,
    versions,
)
from launch.doctor.examination import gathered
from launch.doctor.facts import (
    GIB,
    Device,
    Devices,
    Holder,
    Kernels,
    Leftovers,
    Link,
    Links,
    Listener,
    Orphan,
    Package,
    Path,
    RayNode,
    Rdma,
)
from launch.recipes.effective import Weights
from launch.software import Import

BRIDGE = Import("megatron.bridge", "the trainer", "take another recipe")
NPUS = well().devices
SOFTWARE = well().software
NETWORK = well().network
SYSTEM = well().system
KERNELS = well().kernels
A3 = replace(NPUS, chip="ascend910_9392")


class Case(NamedTuple):
    """A check, what it must say (in the finding or its fix), and what differs: on the host, and in what is wanted."""

    check: Check
    level: str
    words: str
    changed: dict[str, Any]
    run: dict[str, Any]


def case(check: Check, level: str, words: str, run: dict[str, Any] | None = None, **changed: Any) -> Case:
    return Case(check, level, words, changed, run or {})


def with_packages(**changed: Package | None) -> dict[str, Any]:
    """The software of cann9.1 with packages replaced, or taken out by None; _ stands for -."""
    found = packages("ascend-cann9.1") | {name.replace("_", "-"): package for name, package in changed.items()}
    return {"software": replace(SOFTWARE, packages={name: package for name, package in found.items() if package})}


def link(**changed: Any) -> dict[str, Any]:
    """Two links, of which the second differs."""
    links = (Link(0, "UP", "198.51.100.1", False), replace(Link(1, "UP", "198.51.100.2", False), **changed))
    return {"links": Links(links)}


def file(what: str, found: bool, **changed: Any) -> dict[str, Any]:
    """A path of the run."""
    return {"paths": (Path(what, "/models/one", found, **changed),)}


CASES = [
    case(gathered, "error", "network could not be looked at: OSError", network=OSError("no /proc/sys")),
    case(
        devices.present, "error", "install the Ascend HDK driver", devices=Devices("npu-smi", "npu-smi is not on PATH")
    ),
    case(
        devices.present,
        "error",
        "npu-smi, /usr/local/dcmi",
        devices=Devices("npu-smi", "it failed", files=("davinci0",)),
    ),
    case(devices.present, "error", "--device /dev/hisi_hdc", devices=replace(NPUS, files=NPU_FILES[:-1])),
    case(devices.present, "error", "2 x 910B3, driver 25.5.1; 8 wanted", run={"devices": 8}),
    case(devices.present, "error", "no device 3, there are 0, 1", run={"devices": [0, 3]}),
    case(
        devices.present,
        "error",
        "VISIBLE_DEVICES=1 leaves 1; 2 wanted",
        variables={"ASCEND_RT_VISIBLE_DEVICES": "1"},
        run={"devices": 2},
    ),
    case(
        devices.health,
        "error",
        "device 3: Alarm",
        devices=replace(NPUS, found=(Device(3, "910B3", "Alarm", 0, 65536),)),
    ),
    case(
        devices.health,
        "warning",
        "npu-smi info -t health -i 3",
        devices=replace(NPUS, found=(Device(3, "910B3", "Warning", 0, 65536),)),
    ),
    case(
        devices.memory,
        "warning",
        "30000 MiB held by python3 (77)",
        devices=replace(NPUS, holders=(Holder(1, 77, "python3", 30000),)),
    ),
    case(
        devices.memory,
        "warning",
        "cannot be seen from here",
        devices=replace(NPUS, found=(Device(0, "910B3", "OK", 30000, 65536),)),
    ),
    case(
        devices.memory,
        "warning",
        "does not say how much memory device 3 has",
        devices=replace(NPUS, found=(Device(3, "910B3", "OK", None, None), *NPUS.found)),
    ),
    case(devices.memory, "error", "64 GiB; the recipe needs 80", run={"device_gib": 80}),
    case(
        versions.packages, "error", "pip install torch-npu==2.10.0.post4", **with_packages(torch_npu=Package("2.9.0"))
    ),
    case(versions.packages, "error", "verl is not installed", **with_packages(verl=None)),
    case(
        versions.packages,
        "error",
        "Python 3.11.2; ascend-cann9.1 has 3.12",
        software=replace(SOFTWARE, python="3.11.2"),
    ),
    case(
        versions.cann, "error", "CANN 8.3.RC1 (the file); pinned is 9.1.0", software=replace(SOFTWARE, cann="8.3.RC1")
    ),
    case(versions.cann, "error", "no CANN in /opt/x", software=replace(SOFTWARE, cann=None, cann_from="/opt/x")),
    case(versions.driver, "error", "too old for CANN 9.1.0", devices=replace(NPUS, driver="25.0.rc1.b010")),
    case(versions.driver, "warning", "not in the table of CANN 9.1.0", devices=replace(NPUS, driver="27.0.0")),
    case(versions.imports, "error", "megatron.bridge is not installed here; needed by the trainer", missing=(BRIDGE,)),
    case(versions.imports, "error", "take another recipe", missing=(BRIDGE,)),
    case(versions.torch_npu, "error", "pip install torch-npu==2.9.0", **with_packages(torch=Package("2.9.0+cpu"))),
    case(
        versions.triton,
        "error",
        "pip uninstall -y triton triton-ascend && pip install triton-ascend==3.2.2",
        **with_packages(triton=Package("3.6.0")),
    ),
    case(versions.triton, "error", "does not know NPUs", **with_packages(triton=Package("3.6.0"), triton_ascend=None)),
    case(versions.chip, "error", "an image for A2 on A3 (ascend910_9392)", devices=A3),
    case(versions.chip, "error", "the chip is ascend310p3", devices=replace(NPUS, chip="ascend310p3")),
    case(versions.chip, "warning", "cannot be seen", software=replace(SOFTWARE, chip_of_image=None)),
    case(kernels.product, "error", "not on PATH", kernels=Kernels(problem="ascend-quant is not on PATH")),
    case(kernels.product, "error", "fp8 is not served on npu, which has int8", run={"scheme": "fp8"}),
    case(
        kernels.product,
        "error",
        "vllm/_C.abi3.so needs libnuma.so.1, which is not here",
        kernels=replace(KERNELS, missing={"vllm/_C.abi3.so": ["libnuma.so.1"]}),
    ),
    case(kernels.product, "warning", "saturates", kernels=Kernels("cpu", {"int8": "torch in float64"})),
    case(kernels.flashrl, "error", "ascend-quant cleanup", kernels=replace(KERNELS, patch="-try: import flash_rl")),
    case(correction.share, "warning", "leave 0.22 of the batch", run={"weights": Weights("sequence", 2.0, 30720)}),
    case(
        correction.share,
        "warning",
        "(measured) | Use token",
        run={"weights": Weights("sequence", 2.0, 1024), "kl": 1e-3},
    ),
    case(
        correction.share,
        "warning",
        "token the weights leave 0.71 of the batch, 0.8 is wanted (measured)",
        run={"weights": Weights("token", 2.0, 1024), "kl": 0.3},
    ),
    case(kernels.plugins, "error", "pip install -e .", software=replace(SOFTWARE, packages={})),
    case(
        network.nic, "error", "no NIC carries", network=replace(NETWORK, wire=None, problem="no NIC carries 192.0.2.11")
    ),
    case(
        network.ports,
        "error",
        "port 20001 (workers), 20003 (workers) taken on :: by run r1 | wait for it, or ./run.sh stop r1",
        network=replace(NETWORK, listeners=tuple(Listener(port, "::", port, "ray", "r1") for port in (20001, 20003))),
    ),
    case(
        network.ports,
        "error",
        "6766 (ray) taken on 0.0.0.0 by nginx (9)",
        network=replace(NETWORK, listeners=(Listener(6766, "0.0.0.0", 9, "nginx"),)),
    ),
    case(
        network.ports,
        "error",
        "20003 (workers)",
        network=replace(NETWORK, listeners=(Listener(20003, "::"),)),
        run={"head": False},
    ),
    case(
        network.ports,
        "warning",
        "(hccl_host) taken on :: by a process of another user",
        network=replace(NETWORK, listeners=(Listener(60050, "::"),)),
    ),
    case(
        network.ephemeral,
        "warning",
        "ip_local_reserved_ports=60000-60050",
        network=replace(NETWORK, ephemeral=(32768, 60999)),
    ),
    case(
        network.ephemeral,
        "warning",
        "=50-60,60000-60050",
        network=replace(NETWORK, ephemeral=(32768, 60999), reserved=((50, 60),)),
    ),
    case(links.state, "error", "device 1: DOWN", **link(state="DOWN")),
    case(links.state, "warning", "device 1: DOWN", **link(state="DOWN"), devices=A3),
    case(links.state, "warning", "device 1: DOWN", **link(state="DOWN"), run={"hosts": 1}),
    case(links.state, "warning", "there is no hccn_tool", links=Links(problem="there is no hccn_tool")),
    case(links.address, "error", "no address: device 1", **link(address=None)),
    case(links.address, "error", "/etc/hccn.conf", links=replace(well().links, config=False)),
    case(links.tls, "error", "hccn_tool -i 1 -tls -s enable 0", **link(tls=True)),
    case(links.rdma, "warning", "--device /dev/infiniband", rdma=Rdma(("mlx5_0",)), run={"stack": "cuda13"}),
    case(
        links.rdma,
        "warning",
        "libibverbs.so.1: no such file",
        rdma=Rdma(("mlx5_0",), ("rdma_cm", "uverbs0"), "libibverbs.so.1: no such file"),
        run={"stack": "cuda13"},
    ),
    case(variables.address, "error", "unset HCCL_IF_IP", variables={"HCCL_IF_IP": "192.0.2.12"}, run={"hosts": 1}),
    case(variables.address, "warning", "(127.0.0.1, 192.0.2.11)", variables={"HCCL_IF_IP": "192.0.2.12"}),
    case(
        variables.address,
        "error",
        "out of the inventory",
        variables={"HCCL_IF_IP": "a"},
        run={"environment": {"HCCL_IF_IP": "a"}},
    ),
    case(
        variables.nic,
        "error",
        "names no NIC of this host (lo, bond0)",
        variables={"GLOO_SOCKET_IFNAME": "bond"},
        run={"hosts": 1},
    ),
    case(variables.nic, "error", "=bond names no NIC", variables={"HCCL_SOCKET_IFNAME": "=bond"}, run={"hosts": 1}),
    case(
        variables.nic, "error", "^lo,bond names no NIC", variables={"NCCL_SOCKET_IFNAME": "^lo,bond"}, run={"hosts": 1}
    ),
    case(
        variables.allocator,
        "error",
        "export PYTORCH_NPU_ALLOC_CONF=page_size:1g",
        variables={"PYTORCH_NPU_ALLOC_CONF": "page_size:1g,expandable_segments:True"},
    ),
    case(variables.blocking, "warning", "unset ASCEND_LAUNCH_BLOCKING", variables={"ASCEND_LAUNCH_BLOCKING": "1"}),
    case(
        variables.ports, "warning", "the inventory says 60000-60050", variables={"HCCL_HOST_SOCKET_PORT_RANGE": "auto"}
    ),
    case(paths.model, "error", "no model in /models/one", **file("model", False)),
    case(paths.model, "warning", "hf download", **file("model", False, hub=True)),
    case(
        paths.model,
        "error",
        "HF_HUB_OFFLINE is set",
        **file("model", False, hub=True),
        variables={"HF_HUB_OFFLINE": "1"},
    ),
    case(paths.data, "error", "./run.sh data gsm8k,", run={"data_name": "gsm8k"}, **file("data", False)),
    case(paths.out, "error", "cannot be written", **file("out", True, writable=False)),
    case(system.files, "ok", "raises to 32768", system=replace(SYSTEM, open_files=(1024, 65536))),
    case(system.files, "error", "limits.conf", system=replace(SYSTEM, open_files=(1024, 1024))),
    case(system.files, "warning", "--ulimit nofile=32768", system=replace(SYSTEM, open_files=(20000, 20000))),
    case(system.memlock, "warning", "8192 KiB", system=replace(SYSTEM, locked_memory=(8 << 20, None))),
    case(system.shm, "error", "--shm-size=64g", system=replace(SYSTEM, shared_memory=(1 << 26, 1 << 26))),
    case(system.shm, "error", "what nobody uses", system=replace(SYSTEM, shared_memory=(64 * GIB, GIB))),
    case(
        system.disk,
        "warning",
        "20 GiB free for /out; 50 wanted",
        system=replace(SYSTEM, disks={"/out": 20 * GIB}),
        run={"out": "/out"},
    ),
    case(network.door, "error", "no C compiler", network=replace(NETWORK, door="no C compiler here")),
    case(network.door, "warning", "refuses", network=replace(NETWORK, shown="the kernel refuses socket filters")),
    case(
        network.door,
        "warning",
        "port 4711, 4712 of ray::IDLE (7) is open to whoever reaches 0.0.0.0",
        network=replace(
            NETWORK,
            listeners=(
                Listener(4711, "0.0.0.0", 7, "ray::IDLE"),
                Listener(4712, "0.0.0.0", 7, "ray::IDLE"),
                Listener(4713, "127.0.0.1", 7, "ray::IDLE"),
                Listener(4714, "0.0.0.0", 8, "ray::IDLE", "r1", guarded=True),
                Listener(22, "0.0.0.0", 9, "sshd"),
            ),
        ),
    ),
    case(system.memory, "warning", "900 of 1024 GiB available; the recipe needs 1000", run={"host_gib": 1000}),
    case(system.memory, "error", "more memory", run={"host_gib": 2000}),
    case(system.clock, "warning", "no time server", system=replace(SYSTEM, synchronized=False)),
    case(system.clock, "warning", "timedatectl", system=replace(SYSTEM, synchronized=None)),
    case(system.hugepages, "warning", "vm.nr_hugepages=0", system=replace(SYSTEM, huge_pages=(400 * GIB, 200 * GIB))),
    case(
        ray.running,
        "warning",
        "a Ray of eve runs here (raylet 5, head 192.0.2.11:6379)",
        ray=(RayNode(5, "eve", "192.0.2.11:6379", None),),
    ),
    case(ray.running, "warning", "./run.sh stop r1", ray=(RayNode(5, "eve", "192.0.2.11:6766", "r1"),)),
    case(ray.address, "warning", "unset RAY_ADDRESS", variables={"RAY_ADDRESS": "192.0.2.9:6379"}),
    case(
        leftovers.segments,
        "warning",
        "rm /dev/shm/psm_1 '/dev/shm/a b'",
        leftovers=Leftovers(segments=(("/dev/shm/psm_1", GIB), ("/dev/shm/a b", GIB))),
    ),
    case(leftovers.segments, "warning", "--pid=host", leftovers=Leftovers(hidden=True)),
    case(
        leftovers.sockets,
        "warning",
        "rm /tmp/rl-colocate-zmq-1.sock",
        leftovers=Leftovers(sockets=("/tmp/rl-colocate-zmq-1.sock",)),
    ),
    case(
        leftovers.sessions, "warning", "rm -r /tmp/ray/session_1", leftovers=Leftovers(sessions=("/tmp/ray/session_1",))
    ),
    case(leftovers.orphans, "warning", "kill 8", leftovers=Leftovers(orphans=(Orphan(8, "VLLM::EngineCore"),))),
    case(
        leftovers.orphans, "warning", "./run.sh stop r1", leftovers=Leftovers(orphans=(Orphan(8, "ray::IDLE", "r1"),))
    ),
]
