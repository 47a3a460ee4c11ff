"""What a node is told, and what the control host knows. Node plans go to the hosts as one line of JSON."""

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from launch.inventory.fields import Inventory
from launch.modules import Import

Layer = tuple[str, dict[str, str]]  # who says so (recipe, inventory, host, shell), and the variables


@dataclass(frozen=True)
class Job:
    """What the head submits to Ray.

    Attributes:
        entrypoint: the arguments of the node's own interpreter, as ["-m", MODULE, ..].
        files: of its working directory, name -> text.
        environment: variables that are the same on every host.
    """

    entrypoint: list[str]
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodePlan:
    """What a node process does on its host.

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
        temp_dir: of Ray on this host; short, because its sockets lie in it.
        needs: paths that must exist on this host.
        imports: Python modules that the run's processes import.
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
    temp_dir: str
    needs: list[str] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    job: Job | None = None

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "NodePlan":
        """The plan that `to_json` wrote."""
        tree = json.loads(line)
        layers = [(source, variables) for source, variables in tree.pop("layers")]
        imports = [Import(**one) for one in tree.pop("imports", [])]
        job = tree.pop("job")
        return cls(**tree, layers=layers, imports=imports, job=Job(**job) if job else None)


@dataclass(frozen=True)
class Plan:
    """A whole launch.

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
