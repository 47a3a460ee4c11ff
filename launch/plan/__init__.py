"""Plans: what a launch does on each host, made from a recipe and an inventory before anything is started.

It defines the plan of a node and that of the control host. Node plans go to the hosts as one line of JSON.
"""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import TypeAdapter

from launch.cluster.inventory import Inventory
from launch.system import private
from launch.system.software import Import

Layer = tuple[str, dict[str, str]]  # who says so (recipe, inventory, host, shell), and the variables


@dataclass(frozen=True)
class Job:
    """Job that the head submits to Ray.

    Attributes:
        entrypoint: the arguments of the node's own interpreter, as ["-m", MODULE, ..].
        files: of its working directory, name -> text.
        environment: variables that are the same on every host.
    """

    entrypoint: list[str]
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Saving:
    """Checkpoints that a run writes.

    Attributes:
        out: the run's folder.
        model: the folder that the model is read from, or its id on the hub.
        train: the data of an epoch.
        every: steps between two.
        keep: how many stay; None: all.
        steps: of the run; None: `epochs` times what the data have in batches of `batch`.
        parameter_bytes: bytes of a parameter in a checkpoint.
    """

    out: str
    model: str
    train: str
    every: int
    keep: int | None
    steps: int | None
    epochs: int
    batch: int
    parameter_bytes: int


@dataclass(frozen=True)
class NodePlan:
    """Plan of one node process: what it does on its host.

    Attributes:
        run: the run's id.
        host: its number in `members`.
        address, nic: as the inventory has them; a name and auto are resolved on the node.
        devices: how many of those that are there, or their numbers.
        head: the head's address, as in the inventory.
        ports: ray, dashboard, workers (a range, LOW-HIGH).
        members: the addresses of all hosts, the head's first.
        values: for the templates of the environment table; the node adds address, nic, family and devices.
        layers: what the users set, the strongest last.
        join_seconds: until when all must have joined.
        socket_filter: only the run's hosts reach its ports, see `launch.port_guard`.
        model: the absolute path of its folder, or its id on the hub.
        tensor_parallel: devices that share each layer of it in the engine.
        needs: paths that must exist on this host.
        columns: that each data file must have.
        prompt: which of them holds the messages.
        least_rows: of the file to train on.
        imports: Python modules that the run's processes import.
        saving: the run's checkpoints, of the head; None on workers, and where there are none.
        job: of the head; None on workers.
    """

    run: str
    role: Literal["head", "worker"]
    stack: str
    host: int
    address: str
    nic: str
    devices: int | list[int]
    head: str
    ports: dict[str, int | str]
    members: list[str]
    values: dict[str, str]
    layers: list[Layer]
    join_seconds: int
    socket_filter: bool = False
    model: str | None = None
    tensor_parallel: int = 1
    needs: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    prompt: str = "prompt"
    least_rows: dict[str, int] = field(default_factory=dict)
    imports: list[Import] = field(default_factory=list)
    saving: Saving | None = None
    job: Job | None = None

    @property
    def temp_dir(self) -> str:
        """Ray's temporary folder on the host that asks."""
        return str(private.run_folder(self.run))

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
        recipe: its name.
        out: the folder of checkpoints and metrics, as the hosts see it.
        inventory: the machines; nodes[i] and start[i] belong to its host i.
        start: the shell line that starts the node process of each host, by ssh or here.
        containers: the name of each host's container; None on the host itself.
        local: whether each host is this machine, so that no ssh is needed.
        notes: what a reader of the plan should know, a line each.
    """

    run: str
    recipe: str
    out: str
    inventory: Inventory
    nodes: list[NodePlan]
    start: list[str]
    containers: list[str | None]
    local: list[bool]
    notes: list[str] = field(default_factory=list)
