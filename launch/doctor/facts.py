"""What was found on a host, a dataclass a subject: gathered and judged by the module of the subject in checks/."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.software import Import

GIB, MIB = 1 << 30, 1 << 20


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
    """What the driver says.

    Attributes:
        tool: npu-smi or nvidia-smi, or None where the stack has no devices.
        problem: why the tool could not be asked, or what it printed that names no device.
        chip: the SoC, as ascend910b3 or ascend910_9392; None where it is not known.
        files: the device files that there are.
    """

    tool: str | None = None
    problem: str | None = None
    driver: str | None = None
    chip: str | None = None
    found: tuple[Device, ...] = ()
    holders: tuple[Holder, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Package:
    """An installed package; `commit` where its installer or its version says it."""

    version: str
    commit: str | None = None


@dataclass(frozen=True)
class Software:
    """Versions.

    Attributes:
        packages: by the names on the package index, in lower case with dashes.
        sources: a digest of the sources of ascend_quant and launch.
        cann: the toolkit's version, and the file that says it or why there is none.
        chip_of_image: what vllm-ascend was built for, as ascend910b1, or A2 or A3.
    """

    python: str
    packages: Mapping[str, Package] = field(default_factory=dict)
    sources: str = ""
    cann: str | None = None
    cann_from: str = ""
    chip_of_image: str | None = None


@dataclass(frozen=True)
class Listener:
    """A port that is taken; the process is None where only root may see it. `run` is that of ours it belongs to,
    `guarded` whether the process is behind a run's door."""

    port: int
    address: str
    pid: int | None = None
    process: str | None = None
    run: str | None = None
    guarded: bool = False


@dataclass(frozen=True)
class Network:
    """The host's network.

    Attributes:
        nics: those that are up, with the addresses they carry.
        wire: the NIC and the address that a run would use, or None with the reason in `problem`.
        ephemeral: the range of ports that the kernel gives to outgoing connections, both included.
        reserved: ranges that it leaves out.
        door: why a run could not close its ports to strangers here; None where it can.
        shown: why strangers would find them open all the same, and be turned away; None where they are silent.
    """

    nics: Mapping[str, list[str]] = field(default_factory=dict)
    wire: tuple[str, str] | None = None
    problem: str | None = None
    listeners: tuple[Listener, ...] = ()
    ephemeral: tuple[int, int] = (32768, 60999)
    reserved: tuple[tuple[int, int], ...] = ()
    door: str | None = None
    shown: str | None = None


@dataclass(frozen=True)
class Link:
    """A device's own network port.

    Attributes:
        state: UP, DOWN, or what the tool said.
        tls: whether it wants TLS; None where the tool did not say.
    """

    device: int
    state: str
    address: str | None
    tls: bool | None


@dataclass(frozen=True)
class Links:
    """The devices' network, as hccn_tool tells it; `problem` says why it could not be asked."""

    found: tuple[Link, ...] = ()
    problem: str | None = None
    config: bool = True  # whether /etc/hccn.conf is there


@dataclass(frozen=True)
class Rdma:
    """Adapters by which GPUs of several hosts reach each other.

    Attributes:
        adapters: those that the kernel knows, as mlx5_0; a container sees those of its host.
        devices: the files in /dev/infiniband by which processes reach them.
        problem: why libibverbs, which NCCL loads at run time, cannot be loaded; None where it can.
    """

    adapters: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class System:
    """The machine. Sizes are bytes; limits are soft and hard, None for unlimited.

    Attributes:
        disks: free bytes by the folder that was asked for.
        synchronized: whether the kernel's clock follows a time server; None where it cannot be asked.
        huge_pages: bytes set aside for huge pages, and how many of them nobody uses.
    """

    open_files: tuple[int | None, int | None]
    locked_memory: tuple[int | None, int | None]
    shared_memory: tuple[int, int]  # total, free
    disks: Mapping[str, int]
    memory: tuple[int, int]  # total, available
    synchronized: bool | None
    huge_pages: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Orphan:
    """A process of Ray, vLLM or verl whose parent has gone; `run` is the id of the run of ours that it belongs to."""

    pid: int
    command: str
    run: str | None = None


@dataclass(frozen=True)
class Leftovers:
    """What earlier runs left: files that no living process uses.

    Attributes:
        hidden: whether processes that may use them cannot be seen from here, so that nothing can be said.
    """

    sockets: tuple[str, ...] = ()
    segments: tuple[tuple[str, int], ...] = ()  # path, bytes
    sessions: tuple[str, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    hidden: bool = False


@dataclass(frozen=True)
class RayNode:
    """A raylet that runs here; `run` is the id of the run of ours that it belongs to."""

    pid: int
    user: str
    head: str
    run: str | None


@dataclass(frozen=True)
class Path:
    """A file or folder that the run needs.

    Attributes:
        what: the word for it: model, data, out.
        found: whether it is there (a model of the hub: in the cache).
        hub: whether it is an id on the hub.
        writable: whether this user may write there, or could make it.
    """

    what: str
    path: str
    found: bool
    hub: bool = False
    writable: bool = False


@dataclass(frozen=True)
class Kernels:
    """What `ascend-quant` answered.

    Attributes:
        device: cpu, cuda or npu.
        products: what multiplies, by scheme.
        problem: why it did not answer.
        patch: what `ascend-quant cleanup` would take out of this environment; empty where there is nothing.
        missing: libraries that are not here, by the compiled file of vLLM's that needs them.
    """

    device: str | None = None
    products: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    patch: str = ""
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)


class NotGathered(Exception):
    """Facts were read that could not be gathered; `facts.gathered` (examination.py) is the finding about them."""


@dataclass(frozen=True)
class Facts:
    """Everything about one host.

    A field whose gatherer failed holds the exception instead, and reading it raises `NotGathered`.

    Attributes:
        missing: Python modules that the recipe's processes will import, and that are not here.
    """

    devices: Devices
    software: Software
    network: Network
    links: Links
    system: System
    leftovers: Leftovers
    ray: tuple[RayNode, ...]
    paths: tuple[Path, ...]
    kernels: Kernels
    variables: Mapping[str, str]
    missing: tuple[Import, ...] = ()
    rdma: Rdma = Rdma()

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if isinstance(value, Exception):
            raise NotGathered(name) from value
        return value

    def failed(self) -> dict[str, Exception]:
        """Why a gatherer failed, by the field."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Exception)}
