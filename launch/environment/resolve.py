"""The environment variables of a run: the table of those that a launch sets, and the layers that override it.

    table < recipe < inventory < host (of the inventory) < shell

docs/environment.md gives the reason for each variable. Values in braces are filled in on each host, once its NIC and
devices are known: {address}, {nic}, {hccl_family}, {devices} and {places} belong to the host; {task_queue},
{expansion}, {hccl_host} and {hccl_npu} belong to the run, and leave the variable unset if they are empty. {devices} are
numbers, as in /dev/davinci3; {places} are their indexes among the visible devices, from 0, as CANN counts in a
container that has some of a host's NPUs.

From a user's shell, the variables of the table and of its families are used and passed on unchanged. Variables about
the shell's own host (an address, a NIC, devices) are not passed to other hosts, nor are those that connect a process to
another Ray cluster.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

from ascend_quant.processes import environment as process
from ascend_quant.recipes.node import Stack
from launch.environment.variables import OTHER_CLUSTERS, shown

ALL = get_args(Stack)
ASCEND = ("ascend-cann8.5", "ascend-cann9.1")
CPU = ("cpu",)
CUDA = ("cuda13",)
HOSTS_OWN = {"address", "nic", "hccl_family", "devices", "places"}


class Variable(NamedTuple):
    """A row of the table."""

    name: str
    value: str
    stacks: tuple[str, ...]

    @property
    def of_host(self) -> bool:
        """True if the value belongs to one host, so that no other host can use it."""
        return any(field in HOSTS_OWN for _, field, _, _ in string.Formatter().parse(self.value))


TABLE = (
    # the network between hosts
    Variable("HCCL_IF_IP", "{address}", ASCEND),
    Variable("HCCL_SOCKET_IFNAME", "={nic}", ASCEND),
    Variable("HCCL_SOCKET_FAMILY", "{hccl_family}", ASCEND),
    Variable("GLOO_SOCKET_IFNAME", "{nic}", ALL),
    Variable("TP_SOCKET_IFNAME", "{nic}", ALL),
    Variable("NCCL_SOCKET_IFNAME", "={nic}", CUDA),
    Variable("VLLM_HOST_IP", "{address}", ALL),
    # time-outs
    Variable("HCCL_CONNECT_TIMEOUT", "7200", ASCEND),
    Variable("HCCL_EXEC_TIMEOUT", "7200", ASCEND),
    Variable("HCCL_EVENT_TIMEOUT", "7260", ASCEND),
    Variable("ACL_DEVICE_SYNC_TIMEOUT", "7200", ASCEND),
    Variable("GLOO_SOCKET_TIMEOUT", "7200", ASCEND),
    Variable("HCCL_ASYNC_ERROR_HANDLING", "0", ASCEND),
    # buffers, cores and ports of HCCL
    Variable("HCCL_BUFFSIZE", "300", ASCEND),
    Variable("P2P_HCCL_BUFFSIZE", "30", ASCEND),
    Variable("HCCL_OP_EXPANSION_MODE", "{expansion}", ASCEND),
    Variable("HCCL_HOST_SOCKET_PORT_RANGE", "{hccl_host}", ASCEND),
    Variable("HCCL_NPU_SOCKET_PORT_RANGE", "{hccl_npu}", ASCEND),
    # devices
    Variable("ASCEND_RT_VISIBLE_DEVICES", "{places}", ASCEND),
    Variable("ASCEND_VISIBLE_DEVICES", "{devices}", ASCEND),
    Variable("CUDA_VISIBLE_DEVICES", "{places}", CUDA),
    Variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", CUDA),
    Variable("PYTORCH_NPU_ALLOC_CONF", "max_split_size_mb:2048", ASCEND),
    Variable("TASK_QUEUE_ENABLE", "{task_queue}", ASCEND),
    *(Variable(name, value, ASCEND) for name, value in process.NPU.items()),
    # Ray
    *(Variable(name, value, ALL) for name, value in process.RAY.items()),
    Variable("RAY_DEDUP_LOGS", "1", ALL),
    Variable("RAY_health_check_period_ms", "2000", ALL),
    Variable("RAY_health_check_timeout_ms", "4000", ALL),
    Variable("RAY_health_check_failure_threshold", "4", ALL),
    # every process
    *(Variable(name, value, ALL) for name, value in process.EVERY.items()),
    *(Variable(name, value, CPU) for name, value in process.CPU.items()),
)
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
OF_DEVICES = frozenset(variable.name for variable in TABLE if variable.value in ("{devices}", "{places}"))
NAMES = frozenset(variable.name for variable in TABLE)


@dataclass(frozen=True)
class Setting:
    """A variable of a host, and the source of its value.

    Attributes:
        source: table, recipe, inventory, host or shell.
        instead_of: the value that this one replaces, if any.
    """

    name: str
    value: str
    source: str
    instead_of: str | None = None


def rows(stack: str) -> list[Variable]:
    """Return the table's rows for a stack."""
    return [variable for variable in TABLE if stack in variable.stacks]


def node_environment(
    stack: str, values: Mapping[str, str], layers: Sequence[tuple[str, Mapping[str, str]]]
) -> list[Setting]:
    """Return the variables of a host, in the table's order, then those that only users set.

    A user's selection of devices has already been applied, and is not passed on: numbers differ in a container.

    Args:
        values: values for the table's templates: address, nic, family (ipv4 or ipv6), devices, places, and
            NodePlan.values.
        layers: (source, variables) pairs, where source is recipe, inventory, host or shell; the strongest last.
    """
    filled = {**values, "hccl_family": FAMILY.get(values["family"], values["family"])}
    table = {row: row.value.format_map(filled) for row in rows(stack)}
    found = {row.name: Setting(row.name, value, "table") for row, value in table.items() if value or row.of_host}
    for source, variables in layers:
        for name, value in variables.items():
            below = found.get(name)
            if below is None:
                found[name] = Setting(name, value, source)
            elif name in OF_DEVICES and value != below.value:
                found[name] = replace(below, instead_of=value)
            else:
                replaced = below.value if below.value != value else below.instead_of
                found[name] = Setting(name, value, source, replaced)
    return list(found.values())


def overruled(settings: Sequence[Setting], own: Mapping[str, str]) -> list[str]:
    """Return a line for each variable whose value in a host's login environment (`own`) is overridden."""
    return [
        f"{one.name}: this host's login environment says {shown(one.name, own[one.name])}; the run uses "
        f"{shown(one.name, one.value)} ({one.source}). If the host's is right, write it into the inventory"
        for one in settings
        if one.name in own and own[one.name] != one.value
    ]


def counts(name: str) -> bool:
    """Return whether a variable of a shell is used for a run."""
    return name not in OTHER_CLUSTERS and (name in NAMES or name.startswith(FAMILIES))


def of_shell(shell: Mapping[str, str], own: bool) -> dict[str, str]:
    """Return the variables that a shell passes to its own host (`own`), or to another one."""
    return {name: value for name, value in shell.items() if counts(name) and (own or name not in OF_HOST)}


def not_handed_on(shell: Mapping[str, str]) -> list[str]:
    """Return the names of variables in a shell that apply only to its own host."""
    return sorted(OF_HOST & set(shell))
