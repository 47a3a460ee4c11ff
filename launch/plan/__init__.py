"""Plans: what a launch does on each host, made from a recipe and an inventory before anything is started.

This module defines what a run wants of each host, which the doctor checks; the plan of each host's part, which adds how
it takes part; and the plan of the launcher, which sends each part its own as one line of JSON.
"""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import TypeAdapter

from launch.cluster.inventory import Inventory, Ports
from launch.system import private
from launch.system.software import Import

Layer = tuple[str, dict[str, str]]  # the source (recipe, inventory, host, shell) and its variables


@dataclass(frozen=True)
class Job:
    """Job that the head submits to Ray.

    Attributes:
        entrypoint: arguments of the node's Python interpreter, such as ["-m", MODULE, ..].
        files: files of its working directory, as a mapping of names to their text.
        environment: variables that are the same on every host.
    """

    entrypoint: list[str]
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Saving:
    """Checkpoints that a run writes.

    Attributes:
        train: the training data, which an epoch reads once.
        every: number of steps between two checkpoints.
        keep: number of checkpoints that are kept; None: all.
        steps: number of steps of the run; None: `epochs` times the number of batches in the data.
        epochs: number of epochs.
        batch: number of prompts in a batch.
        parameter_bytes: bytes per parameter in a checkpoint.
    """

    train: str
    every: int
    keep: int | None
    steps: int | None
    epochs: int
    batch: int
    parameter_bytes: int


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a run wants of one host; the defaults are those of a host that is examined without a run.

    Attributes:
        stack: the software stack.
        role: whether the host is the run's first one.
        hosts: the number of hosts in the whole run.
        address, nic: the values in the inventory; a host name, or auto for the NIC, is resolved on the host. The
            address is None if the run uses only this machine.
        devices: the number of devices to use, or their indices; auto: any number.
        ports: the ports named ray and dashboard, and the ranges workers, hccl_host and hccl_npu (LOW-HIGH); none if Ray
            runs already.
        environment: the variables that the user sets on this host.
        targets: (host, port) pairs that must be reached from here.
        device_gib, host_gib: memory that the recipe needs per device and per host, in GiB.
        sleeps: whether the engine releases its memory between rollouts (vLLM's sleep mode).
        model: the absolute path of the model's folder, or its id on the hub; None if the run has none.
        tensor_parallel: number of devices among which the engine splits each layer of the model.
        needs: paths that must exist.
        columns: columns that each data file must have.
        prompt: the column that contains the messages.
        least_rows: minimum number of rows, by data file.
        imports: Python modules that the run's processes import.
        out: the run's output folder; None if it has none.
        saving: the run's checkpoints; None on workers, and if the run writes none.
    """

    stack: str = "cpu"
    role: Literal["head", "worker"] = "head"
    hosts: int = 1
    address: str | None = None
    nic: str = "auto"
    devices: Literal["auto"] | int | list[int] = "auto"
    ports: dict[str, int | str] = field(default_factory=lambda: Ports().model_dump())
    environment: dict[str, str] = field(default_factory=dict)
    targets: list[tuple[str, int]] = field(default_factory=list)
    device_gib: int | None = None
    host_gib: int | None = None
    sleeps: bool = True
    model: str | None = None
    tensor_parallel: int = 1
    needs: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    prompt: str = "prompt"
    least_rows: dict[str, int] = field(default_factory=dict)
    imports: list[Import] = field(default_factory=list)
    out: str | None = None
    saving: Saving | None = None


@dataclass(frozen=True, kw_only=True)
class NodePlan(Wanted):
    """Plan of a host's part of a run.

    Attributes:
        run: the run's id.
        host: the index of this host in `members`.
        head: the head's address, as in the inventory.
        members: the addresses of all hosts, the head's first.
        values: values for the templates of the environment table; the node adds address, nic, family, devices and
            places.
        layers: the variables that the user has set, by source; later layers override earlier ones.
        join_seconds: time within which all hosts must join.
        socket_filter: whether only the run's hosts can reach its ports, see `launch.port_guard`.
        job: the job that the head submits; None on workers.
    """

    run: str
    host: int
    head: str
    members: list[str]
    values: dict[str, str]
    layers: list[Layer]
    join_seconds: int
    socket_filter: bool = False
    job: Job | None = None

    @property
    def temp_dir(self) -> str:
        """Ray's temporary folder, on the host where this is evaluated."""
        return str(private.run_folder(self.run))

    @property
    def logs(self) -> str:
        """Folder to which each host's part copies Ray's logs at the end."""
        return f"{self.out}/logs"

    def to_json(self) -> str:
        """Serialize the plan to one line."""
        return TypeAdapter(NodePlan).dump_json(self).decode()

    @classmethod
    def from_json(cls, line: str) -> "NodePlan":
        """Parse the plan that `to_json` wrote."""
        return TypeAdapter(NodePlan).validate_json(line)


@dataclass(frozen=True)
class Plan:
    """Plan of a whole launch.

    Attributes:
        run: the run's id.
        recipe: the recipe's name.
        inventory: the machines; nodes[i] belongs to its host i.
        nodes: the plan of each host.
        local: whether each host is this machine, so that ssh is not needed.
        notes: notes for the reader of the plan, one line each.
    """

    run: str
    recipe: str
    inventory: Inventory
    nodes: list[NodePlan]
    local: list[bool]
    notes: list[str] = field(default_factory=list)

    @property
    def job(self) -> Job:
        """The job that the head submits."""
        return next(node.job for node in self.nodes if node.job)
