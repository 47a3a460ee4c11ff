"""Facts for the checks: what a run wants of a host, and what was found there, a dataclass a subject.

Facts are gathered and judged by the module of their subject.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from launch.inventory import Ports
from launch.plan import Saving
from launch.software import Import, Package

GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True)
class Wanted:
    """Requirements of a run on one host; sent there as JSON.

    Attributes:
        hosts: of the whole run.
        head: whether this is the first of them.
        address: as the inventory has it; None where this machine works alone.
        environment: variables that the inventory sets on this host.
        model: the absolute path of a folder, or an id on the hub.
        tensor_parallel: devices that share each layer of it in the engine.
        data: files.
        columns: that each of them must have.
        prompt: which of these holds the messages.
        least_rows: of the file to train on.
        data_name: what `run.sh data` calls them.
        saving: the run's checkpoints; None where there are none.
        device_gib, host_gib: memory that the recipe says it needs.
        scheme: of the rollout.
        imports: Python modules that the run's processes import.
        sleeps: whether the engine gives its memory back between rollouts (vLLM's sleep mode).
        corrected: whether the recipe has importance weights.
        exact: whether its trainer computes the rollout's policy bit for bit.
    """

    stack: str = "cpu"
    hosts: int = 1
    head: bool = True
    address: str | None = None
    nic: str = "auto"
    devices: Literal["auto"] | int | list[int] = "auto"
    ports: Mapping[str, int | str] = field(default_factory=lambda: Ports().model_dump())
    environment: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    tensor_parallel: int = 1
    data: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    prompt: str = "prompt"
    least_rows: Mapping[str, int] = field(default_factory=dict)
    data_name: str = "NAME"
    out: str | None = None
    saving: Saving | None = None
    device_gib: int | None = None
    host_gib: int | None = None
    scheme: str | None = None
    imports: list[Import] = field(default_factory=list)
    sleeps: bool = True
    corrected: bool = False
    exact: bool = False

    @property
    def count(self) -> int | None:
        """Number of devices; None where all are taken."""
        if isinstance(self.devices, list):
            return len(self.devices)
        return None if self.devices == "auto" else self.devices


@dataclass(frozen=True)
class Device:
    """An NPU die or a GPU.

    Attributes:
        number: as the driver counts.
        health: the driver's word for it; OK is well.
        used_mib, total_mib: of its memory, in MiB; None where the driver does not say.
    """

    number: int
    name: str
    health: str
    used_mib: int | None
    total_mib: int | None


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a device; `pid` is the host's, also when asked in a container."""

    device: int
    pid: int
    name: str
    mib: int


@dataclass(frozen=True)
class Devices:
    """Devices as their driver reports them.

    Attributes:
        tool: npu-smi or NVML, or None where the stack has no devices.
        problem: why the tool could not be asked, or what it printed that names no device.
        chip: the SoC, as ascend910b3 or ascend910_9392; None where it is not known.
        files: the device files that there are; on stack cpu those of the NPUs or GPUs that it leaves alone.
        cards: the numbers that npu-smi's -i takes; an A3's card has two devices.
    """

    tool: str | None = None
    problem: str | None = None
    driver: str | None = None
    chip: str | None = None
    found: tuple[Device, ...] = ()
    holders: tuple[Holder, ...] = ()
    files: tuple[str, ...] = ()
    cards: tuple[int, ...] = ()


@dataclass(frozen=True)
class Software:
    """Versions of the software of a host.

    Attributes:
        packages: by the names on the package index, in lower case with dashes.
        sources: a digest of the sources of ascend_quant and launch.
        cann: the toolkit's version, and the file that says it or why there is none.
        chip_of_image: what vllm-ascend was built for, as ascend910b1, or A2 or A3.
        flashrl: the file by which FlashRL patches vLLM in this environment; None where it does not.
        executable: of the interpreter.
    """

    python: str
    packages: Mapping[str, Package] = field(default_factory=dict)
    sources: str = ""
    cann: str | None = None
    cann_from: str = ""
    chip_of_image: str | None = None
    flashrl: str | None = None
    executable: str = ""


@dataclass(frozen=True)
class Network:
    """Network interfaces and ports of a host.

    Attributes:
        nics: those that are up, with the addresses they carry.
        wire: the NIC and the address that a run would use, or None with the reason in `problem`.
        taken: a line for each port of the run's Ray that a process listens on.
    """

    nics: Mapping[str, list[str]] = field(default_factory=dict)
    wire: tuple[str, str] | None = None
    problem: str | None = None
    taken: tuple[str, ...] = ()


@dataclass(frozen=True)
class Link:
    """Link of an NPU's own network port; `state` is UP, DOWN, or what the tool said."""

    device: int
    state: str
    address: str | None


@dataclass(frozen=True)
class Links:
    """Networks between devices of several hosts.

    Attributes:
        npus: the NPUs' ports, as hccn_tool tells them.
        problem: why hccn_tool could not be asked.
        config: whether /etc/hccn.conf is there.
        adapters: those for RDMA that the kernel knows, as mlx5_0; a container sees those of its host.
        files: in /dev/infiniband, by which processes reach the adapters.
        library: why libibverbs, which NCCL loads at run time, cannot be loaded; None where it can.
    """

    npus: tuple[Link, ...] = ()
    problem: str | None = None
    config: bool = True
    adapters: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    library: str | None = None


@dataclass(frozen=True)
class Leftover:
    """A raylet, or a process of vLLM or verl without a parent; `run` is the id of the run of ours it belongs to."""

    pid: int
    user: str
    command: str
    run: str | None


@dataclass(frozen=True)
class Machine:
    """Memory, disks and leftover processes of a host. Sizes are bytes.

    Attributes:
        shared_memory: of /dev/shm, total and free.
        temporary: of the disk of /tmp, total and free.
        unusable: why /tmp cannot be used; None where it can.
        memory: total and available; in a container its own limit.
        leftovers: processes of earlier runs, and of other Rays.
    """

    shared_memory: tuple[int, int]
    temporary: tuple[int, int]
    unusable: str | None
    memory: tuple[int, int]
    leftovers: tuple[Leftover, ...] = ()


@dataclass(frozen=True)
class Files:
    """Files that the run reads and writes on a host.

    Attributes:
        model: whether the model is here (one of the hub: in the cache); None where the run names none.
        wrong_model: what about it would stop the run, and what to do.
        missing_data: the data files that are not here.
        wrong_data: a line for each thing in those that are, which verl cannot train on.
        out: bytes free where the result goes; None where the run names no folder.
        lacking_room: what that disk lacks for the run's checkpoints, and what to do.
        writable: whether this user may write there, or could make it.
    """

    model: bool | None = None
    wrong_model: tuple[tuple[str, str], ...] = ()
    missing_data: tuple[str, ...] = ()
    wrong_data: tuple[str, ...] = ()
    out: int | None = None
    lacking_room: tuple[tuple[str, str], ...] = ()
    writable: bool = True


@dataclass(frozen=True)
class Facts:
    """Facts about one host.

    A field whose gatherer failed holds the exception instead, and reading it raises that.

    Attributes:
        missing: Python modules that the recipe's processes will import, and that are not here.
    """

    devices: Devices
    software: Software
    network: Network
    links: Links
    machine: Machine
    files: Files
    variables: Mapping[str, str]
    missing: tuple[Import, ...] = ()

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if isinstance(value, Exception):
            raise value
        return value
