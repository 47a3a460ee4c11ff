"""The environment variables of a run: the table of those that a launch sets, and what overrides it.

    table < recipe < inventory < host (of the inventory) < shell

docs/environment.md says why each is in the table. A value in braces is filled in on each host, when its NIC and devices
are known, and for `--dry-run` with words in their place: {address}, {nic}, {hccl_family}, {devices} and {places} are
the host's own, {task_queue}, {expansion}, {hccl_host} and {hccl_npu} the run's. Of those an empty one leaves the
variable unset. {devices} are numbers, as in /dev/davinci3; {places} say which of the devices that are there these are,
from 0, as CANN counts in a container that has some of a host's NPUs.

Of a user's shell count the variables of the table, and those of its families, which are handed on as they are. What
names the shell's own host (an address, a NIC, devices) is not handed to others, and neither is what ties a process to
another Ray cluster.
"""

import os
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

from launch.environment.variables import OTHER_CLUSTERS, shown
from launch.recipes.fields import Stack

ALL = get_args(Stack)
ASCEND = ("ascend-cann8.5", "ascend-cann9.1")
CPU = ("cpu",)
CUDA = ("cuda13",)
HOSTS_OWN = {"address", "nic", "hccl_family", "devices", "places"}


class Variable(NamedTuple):
    """Row of the table. `process`: it holds for any process of its stacks, as the demo's, not a run's hosts alone."""

    name: str
    value: str
    stacks: tuple[str, ...]
    process: bool = False

    @property
    def of_host(self) -> bool:
        """True where the value names something of one host, so that no other host can use it."""
        return any(field in HOSTS_OWN for _, field, _, _ in string.Formatter().parse(self.value))


TABLE = (
    # the network between hosts
    Variable("HCCL_IF_IP", "{address}", ASCEND),
    Variable("HCCL_SOCKET_IFNAME", "={nic}", ASCEND),
    Variable("HCCL_SOCKET_FAMILY", "{hccl_family}", ASCEND),
    Variable("GLOO_SOCKET_IFNAME", "{nic}", ALL, process=True),
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
    Variable("VLLM_ASCEND_ENABLE_NZ", "0", ASCEND),
    # Ray
    Variable("RAY_USAGE_STATS_ENABLED", "0", ALL, process=True),
    Variable("RAY_DEDUP_LOGS", "1", ALL),
    Variable("RAY_health_check_period_ms", "2000", ALL),
    Variable("RAY_health_check_timeout_ms", "4000", ALL),
    Variable("RAY_health_check_failure_threshold", "4", ALL),
    # any process
    Variable("HYDRA_FULL_ERROR", "1", ALL),
    Variable("PYTHONUNBUFFERED", "1", ALL, process=True),
    Variable("VLLM_NO_USAGE_STATS", "1", ALL, process=True),
    Variable("TOKENIZERS_PARALLELISM", "false", ALL, process=True),
    # processes on CPUs
    Variable("VERL_PLATFORM", "cpu", CPU, process=True),
    Variable("VERL_ENGINE_DEVICE", "cuda", CPU, process=True),
    Variable("VLLM_CPU_KVCACHE_SPACE", "1", CPU, process=True),
    Variable("VLLM_CPU_OMP_THREADS_BIND", "nobind", CPU, process=True),
    Variable("OMP_NUM_THREADS", "1", CPU, process=True),
    Variable("HF_HUB_OFFLINE", "1", CPU, process=True),
    Variable("TRANSFORMERS_OFFLINE", "1", CPU, process=True),
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
    """Variable of a host, and where its value comes from.

    Attributes:
        source: table, recipe, inventory, host or shell.
        instead_of: the other value that this one replaces, if there was one.
    """

    name: str
    value: str
    source: str
    instead_of: str | None = None


def rows(stack: str) -> list[Variable]:
    """Return the table's rows for a stack."""
    return [variable for variable in TABLE if stack in variable.stacks]


def environment(stack: str, current: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process of this stack, without a cluster: the table, overridden by the user's own."""
    table = {row.name: row.value.format(nic="lo") for row in rows(stack) if row.process}
    return {**table, **(os.environ if current is None else current)}


def node_environment(
    stack: str, values: Mapping[str, str], layers: Sequence[tuple[str, Mapping[str, str]]]
) -> list[Setting]:
    """Return the variables of a host, in the table's order, then those that only users set.

    What a user says of the devices has chosen them, and is not handed on: in a container they have other numbers.

    Args:
        values: for the table's templates: address, nic, family (ipv4 or ipv6), devices, places, and NodePlan.values.
        layers: who says so (recipe, inventory, host, shell), and the variables; the strongest last.
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
    """Return a line for each variable that a host's login environment (`own`) has otherwise: no silent replacement."""
    return [
        f"{one.name}: this host's login environment says {shown(one.name, own[one.name])}; the run uses "
        f"{shown(one.name, one.value)} ({one.source}). If the host's is right, write it into the inventory"
        for one in settings
        if one.name in own and own[one.name] != one.value
    ]


def counts(name: str) -> bool:
    """Return whether a variable of a shell is one for a run."""
    return name not in OTHER_CLUSTERS and (name in NAMES or name.startswith(FAMILIES))


def of_shell(shell: Mapping[str, str], own: bool) -> dict[str, str]:
    """Return the variables that a shell hands to a host: its own host (`own`), or another."""
    return {name: value for name, value in shell.items() if counts(name) and (own or name not in OF_HOST)}


def not_handed_on(shell: Mapping[str, str]) -> list[str]:
    """List the names in a shell that count on its own host alone."""
    return sorted(OF_HOST & set(shell))
