"""Facts for the checks: a run's requirements for a host, and the state of the host; one dataclass per subject.

The module of each subject gathers and checks its facts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from launch.cluster.inventory import Ports
from launch.plan import Saving
from launch.system.software import Import, Package

GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True)
class Wanted:
    """A run's requirements for one host; sent there as JSON."""

    stack: str = "cpu"
    hosts: int = 1  # in the whole run
    head: bool = True  # whether this is the first host
    address: str | None = None  # as in the inventory; None if the run uses only this machine
    nic: str = "auto"
    devices: Literal["auto"] | int | list[int] = "auto"
    ports: Mapping[str, int | str] = field(default_factory=lambda: Ports().model_dump())  # none: Ray runs already
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that the inventory sets on this host
    model: str | None = None  # absolute path of a folder, or hub id
    tensor_parallel: int = 1  # tensor-parallel size of the engine
    data: list[str] = field(default_factory=list)  # paths
    columns: list[str] = field(default_factory=list)  # required in each file
    prompt: str = "prompt"  # the column with the messages
    least_rows: Mapping[str, int] = field(default_factory=dict)  # of the file to train on
    out: str | None = None
    saving: Saving | None = None  # None without checkpoints
    device_gib: int | None = None  # required by the recipe
    host_gib: int | None = None
    imports: list[Import] = field(default_factory=list)  # Python modules that the run's processes import
    sleeps: bool = True  # whether the engine releases its memory between rollouts (vLLM's sleep mode)

    @property
    def count(self) -> int | None:
        """The number of devices; None if all are used."""
        if isinstance(self.devices, list):
            return len(self.devices)
        return None if self.devices == "auto" else self.devices


@dataclass(frozen=True)
class Device:
    """An NPU die or a GPU."""

    number: int  # the driver's number
    name: str
    health: str  # as reported by the driver; OK if healthy
    used_mib: int | None  # None if the driver does not report it
    total_mib: int | None


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a device; `pid` is the host's, even in a container."""

    device: int
    pid: int
    name: str
    mib: int


@dataclass(frozen=True)
class Devices:
    """Devices as reported by their driver."""

    tool: str | None = None  # npu-smi or NVML; None if the stack has no devices
    problem: str | None = None  # why the tool failed, or its output if that lists no device
    driver: str | None = None
    chip: str | None = None  # the SoC, such as ascend910b3 or ascend910_9392; None if unknown
    found: tuple[Device, ...] = ()
    holders: tuple[Holder, ...] = ()
    files: tuple[str, ...] = ()  # in /dev; on stack cpu those of NPUs or GPUs that it does not use


@dataclass(frozen=True)
class Software:
    """The software versions of a host."""

    python: str
    packages: Mapping[str, Package] = field(default_factory=dict)  # by normalized name
    sources: str = ""  # digest of the sources of ascend_quant and launch
    cann: str | None = None  # version of the toolkit, and its file or why there is none
    cann_from: str = ""
    chip_of_image: str | None = None  # chip for which vllm-ascend was built, such as ascend910b1, or A2 or A3
    flashrl: str | None = None  # the file through which FlashRL patches vLLM in this environment; None if there is none
    executable: str = ""  # the Python interpreter


@dataclass(frozen=True)
class Network:
    """The network interfaces and ports of a host."""

    nics: Mapping[str, list[str]] = field(default_factory=dict)  # interfaces that are up, with their addresses
    wire: tuple[str, str] | None = None  # NIC and address that a run would use; None with a `problem`
    problem: str | None = None
    taken: tuple[str, ...] = ()  # a line for each port of the run's Ray on which a process listens


@dataclass(frozen=True)
class Link:
    """The link of an NPU's network port; `state` is UP, DOWN, or the tool's output."""

    device: int
    state: str
    address: str | None


@dataclass(frozen=True)
class Links:
    """The NPUs' own network ports."""

    npus: tuple[Link, ...] = ()  # as reported by hccn_tool
    problem: str | None = None  # why hccn_tool failed
    config: bool = True  # whether /etc/hccn.conf exists


@dataclass(frozen=True)
class Machine:
    """Memory and disks of a host. Sizes are bytes."""

    shared_memory: tuple[int, int]  # of /dev/shm: total and free
    temporary: tuple[int, int]  # of the disk of /tmp: total and free
    unusable: str | None  # why /tmp cannot be used; None if it can
    memory: tuple[int, int]  # total and available; in a container its own limit


@dataclass(frozen=True)
class Files:
    """The files that the run reads and writes on a host."""

    model: bool | None = None  # whether the model exists (a hub id: in the cache); None if the run names none
    wrong_model: tuple[tuple[str, str], ...] = ()  # problems that would stop the run, with their fixes
    missing_data: tuple[str, ...] = ()  # data files that do not exist
    wrong_data: tuple[str, ...] = ()  # a line for each problem of the others that verl cannot handle
    out: int | None = None  # free bytes for the output; None if the run names no folder
    lacking_room: tuple[tuple[str, str], ...] = ()  # what the disk lacks for checkpoints, with the fix
    writable: bool = True  # whether this user can write to the output folder, or create it


@dataclass(frozen=True)
class Facts:
    """The facts about one host.

    A field whose gatherer failed contains the exception, which is raised when the field is read."""

    devices: Devices
    software: Software
    network: Network
    links: Links
    machine: Machine
    files: Files
    variables: Mapping[str, str]
    missing: tuple[Import, ...] = ()  # Python modules that the recipe's processes import, and that are missing

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if isinstance(value, Exception):
            raise value
        return value
