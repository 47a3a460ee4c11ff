"""Facts for the checks: what a run requires of a host, and what was found there; one dataclass per subject.

Facts are gathered and judged by the module of their subject.
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
    """Requirements of a run on one host; sent there as JSON."""

    stack: str = "cpu"
    hosts: int = 1  # of the whole run
    head: bool = True  # whether this is the first of them
    address: str | None = None  # as the inventory has it; None where this machine works alone
    nic: str = "auto"
    devices: Literal["auto"] | int | list[int] = "auto"
    ports: Mapping[str, int | str] = field(default_factory=lambda: Ports().model_dump())
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that the inventory sets on this host
    model: str | None = None  # the absolute path of a folder, or an id on the hub
    tensor_parallel: int = 1  # devices that share each layer of it in the engine
    data: list[str] = field(default_factory=list)  # files
    columns: list[str] = field(default_factory=list)  # that each of them must have
    prompt: str = "prompt"  # which of these holds the messages
    least_rows: Mapping[str, int] = field(default_factory=dict)  # of the file to train on
    out: str | None = None
    saving: Saving | None = None  # the run's checkpoints; None where there are none
    device_gib: int | None = None  # memory that the recipe says it needs
    host_gib: int | None = None
    imports: list[Import] = field(default_factory=list)  # Python modules that the run's processes import
    sleeps: bool = True  # whether the engine gives its memory back between rollouts (vLLM's sleep mode)

    @property
    def count(self) -> int | None:
        """Number of devices; None where all are taken."""
        if isinstance(self.devices, list):
            return len(self.devices)
        return None if self.devices == "auto" else self.devices


@dataclass(frozen=True)
class Device:
    """An NPU die or a GPU."""

    number: int  # as the driver counts
    name: str
    health: str  # the driver's word for it; OK is well
    used_mib: int | None  # None where the driver does not say
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
    """Devices as their driver reports them."""

    tool: str | None = None  # npu-smi or NVML, or None where the stack has no devices
    problem: str | None = None  # why the tool could not be asked, or what it printed that names no device
    driver: str | None = None
    chip: str | None = None  # the SoC, as ascend910b3 or ascend910_9392; None where it is not known
    found: tuple[Device, ...] = ()
    holders: tuple[Holder, ...] = ()
    files: tuple[str, ...] = ()  # in /dev; on stack cpu those of the NPUs or GPUs that it leaves alone


@dataclass(frozen=True)
class Software:
    """Versions of the software of a host."""

    python: str
    packages: Mapping[str, Package] = field(default_factory=dict)  # by name, in lower case with dashes
    sources: str = ""  # a digest of the sources of ascend_quant and launch
    cann: str | None = None  # the toolkit's version, and the file that says it or why there is none
    cann_from: str = ""
    chip_of_image: str | None = None  # what vllm-ascend was built for, as ascend910b1, or A2 or A3
    flashrl: str | None = None  # the file by which FlashRL patches vLLM in this environment; None where it does not
    executable: str = ""  # of the interpreter


@dataclass(frozen=True)
class Network:
    """Network interfaces and ports of a host."""

    nics: Mapping[str, list[str]] = field(default_factory=dict)  # those that are up, with the addresses they carry
    wire: tuple[str, str] | None = None  # NIC and address that a run would use, or None with the `problem`
    problem: str | None = None
    taken: tuple[str, ...] = ()  # a line for each port of the run's Ray that a process listens on


@dataclass(frozen=True)
class Link:
    """Link of an NPU's own network port; `state` is UP, DOWN, or what the tool said."""

    device: int
    state: str
    address: str | None


@dataclass(frozen=True)
class Links:
    """The NPUs' own network ports."""

    npus: tuple[Link, ...] = ()  # as hccn_tool tells them
    problem: str | None = None  # why hccn_tool could not be asked
    config: bool = True  # whether /etc/hccn.conf is there


@dataclass(frozen=True)
class Machine:
    """Memory and disks of a host. Sizes are bytes."""

    shared_memory: tuple[int, int]  # of /dev/shm, total and free
    temporary: tuple[int, int]  # of the disk of /tmp, total and free
    unusable: str | None  # why /tmp cannot be used; None where it can
    memory: tuple[int, int]  # total and available; in a container its own limit


@dataclass(frozen=True)
class Files:
    """Files that the run reads and writes on a host."""

    model: bool | None = None  # whether the model is here (one of the hub: in the cache); None where the run names none
    wrong_model: tuple[tuple[str, str], ...] = ()  # what about it would stop the run, and what to do
    missing_data: tuple[str, ...] = ()  # the data files that are not here
    wrong_data: tuple[str, ...] = ()  # a line for each thing in those that are, which verl cannot train on
    out: int | None = None  # bytes free where the result goes; None where the run names no folder
    lacking_room: tuple[tuple[str, str], ...] = ()  # what that disk lacks for the run's checkpoints, and what to do
    writable: bool = True  # whether this user may write there, or could make it


@dataclass(frozen=True)
class Facts:
    """Facts about one host.

    A field whose gatherer failed holds the exception instead, and reading it raises that."""

    devices: Devices
    software: Software
    network: Network
    links: Links
    machine: Machine
    files: Files
    variables: Mapping[str, str]
    missing: tuple[Import, ...] = ()  # Python modules that the recipe's processes will import, and that are not here

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if isinstance(value, Exception):
            raise value
        return value
