"""The environment variables of a run: the table of those that a launch sets, and what users set over it.

    table < recipe < inventory < host (of the inventory) < shell

A host's environment is made on the host itself, when its NIC and devices are known, and for `--dry-run` with words in
their place. Of a user's shell count the variables of the table, and those of its families, which are handed on as they
are. What names the shell's own host (an address, a NIC, devices) is not handed to others, and neither is what ties a
process to another Ray cluster.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launch.environment.table import TABLE, Variable
from launch.variables import OTHER_CLUSTERS, shown

FAMILY = {"ipv4": "AF_INET", "ipv6": "AF_INET6"}
FAMILIES = (
    "ASCEND_GLOBAL_",
    "ASCEND_LAUNCH_",
    "ASCEND_SLOG_",
    "CUDA_DEVICE_",
    "CUDA_LAUNCH_",
    "FLASHRL_",
    "GLOO_",
    "HCCL_",
    "HF_",
    "HYDRA_",
    "MLFLOW_",
    "NCCL_",
    "OMP_",
    "PYTORCH_",
    "RAY_",
    "SWANLAB_",
    "TENSORBOARD_",
    "TORCH_",
    "TRANSFORMERS_",
    "VERL_",
    "VLLM_",
    "WANDB_",
)
OF_HOST = frozenset(variable.name for variable in TABLE if variable.of_host)
NAMES = frozenset(variable.name for variable in TABLE)
EARLIER, LATER = "HCCL_EXEC_TIMEOUT", "HCCL_EVENT_TIMEOUT"
NEVER = 0  # as both read it


@dataclass(frozen=True)
class Setting:
    """A variable of a host.

    Attributes:
        source: table, recipe, inventory, host or shell.
        instead_of: the value that the user's replaces, if there was another.
    """

    name: str
    value: str
    source: str
    instead_of: str | None = None


def rows(stack: str) -> list[Variable]:
    """The table's rows for a stack.

    Raises:
        ValueError: there is no such stack.
    """
    found = [variable for variable in TABLE if stack in variable.stacks]
    if not found:
        stacks = dict.fromkeys(stack for variable in TABLE for stack in variable.stacks)
        raise ValueError(f"unknown stack {stack!r}: choose one of {', '.join(stacks)}")
    return found


def environment(stack: str, current: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process of this stack, without a cluster: the table, overridden by what the user has set.

    Raises:
        ValueError: there is no such stack.
    """
    table = {row.name: row.value.format(nic="lo") for row in rows(stack) if row.process}
    return {**table, **(os.environ if current is None else current)}


def node_environment(
    stack: str, values: Mapping[str, str], layers: Sequence[tuple[str, Mapping[str, str]]]
) -> list[Setting]:
    """The variables of a host, in the table's order, then those that only users set.

    Args:
        values: for the table's templates: address, nic, family (ipv4 or ipv6), devices, and NodePlan.values.
        layers: who says so (recipe, inventory, host, shell), and the variables; the strongest last.
    """
    filled = {**values, "hccl_family": FAMILY.get(values["family"], values["family"])}
    found = {row.name: Setting(row.name, row.value.format_map(filled), "table") for row in rows(stack)}
    for source, variables in layers:
        for name, value in variables.items():
            below = found.get(name)
            if below is None:
                found[name] = Setting(name, value, source)
            else:
                replaced = below.value if below.value != value else below.instead_of
                found[name] = Setting(name, value, source, replaced)
    return list(found.values())


def overruled(settings: Sequence[Setting], own: Mapping[str, str]) -> list[str]:
    """A line for each variable that a host's login environment (`own`) has otherwise: none is replaced in silence."""
    return [
        f"{one.name}: this host's login environment says {shown(one.name, own[one.name])}; the run uses "
        f"{shown(one.name, one.value)} ({one.source}). If the host's is right, write it into the inventory"
        for one in settings
        if one.name in own and own[one.name] != one.value
    ]


def counts(name: str) -> bool:
    """Whether a variable of a shell is one for a run."""
    return name not in OTHER_CLUSTERS and (name in NAMES or name.startswith(FAMILIES))


def of_shell(shell: Mapping[str, str], own: bool) -> dict[str, str]:
    """What a shell says to a host: its own host (`own`), or another."""
    return {name: value for name, value in shell.items() if counts(name) and (own or name not in OF_HOST)}


def not_handed_on(shell: Mapping[str, str]) -> list[str]:
    """The names in a shell that count on its own host alone."""
    return sorted(OF_HOST & set(shell))


def out_of_order(settings: Sequence[Setting]) -> list[str]:
    """A line if torch_npu would give up before HCCL says which rank is late; none if either value is no number.

    Users' values win over the table's, one at a time. verl's `nccl_timeout` is none of them: its workers make their
    process group without a time-out of their own (0.9.1 and commit bcb638649a50; only the legacy workers read the
    setting), so on NPUs HCCL's variables are what counts.
    """
    found = {one.name: one for one in settings}
    earlier, later = found.get(EARLIER), found.get(LATER)
    if earlier is None or later is None or not (earlier.value.isdecimal() and later.value.isdecimal()):
        return []
    first, last = (float("inf") if int(one.value) == NEVER else int(one.value) for one in (earlier, later))
    if first < last or first == last == float("inf"):
        return []
    return [
        f"{EARLIER}={earlier.value} ({earlier.source}) is not below {LATER}={later.value} ({later.source}): torch_npu "
        f"gives up before HCCL's own error, which names the rank. Raise {LATER}, or lower {EARLIER}"
    ]
