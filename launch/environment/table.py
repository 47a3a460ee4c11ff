"""Every environment variable that a launch sets, once: name, value, stacks; docs/environment.md says why.

A value in braces is filled in on each host: {address}, {nic}, {hccl_family} and {devices} are the host's own,
{task_queue}, {hccl_host} and {hccl_npu} the run's.
"""

import string
from typing import NamedTuple, get_args

from launch.recipes.fields import Stack
from launch.recipes.versions import reads_variable, version_of

ALL = get_args(Stack)
ASCEND = ("ascend-cann8.5", "ascend-cann9.1")
ASCEND_NZ = tuple(stack for stack in ASCEND if reads_variable(version_of(stack)))  # elsewhere: recipes/versions.py
CPU = ("cpu",)
CUDA = ("cuda13",)
HOSTS_OWN = {"address", "nic", "hccl_family", "devices"}


class Variable(NamedTuple):
    """A row. `process`: it holds for any process of its stacks, such as the demo's, and not for a run's hosts alone."""

    name: str
    value: str
    stacks: tuple[str, ...]
    process: bool = False

    @property
    def of_host(self) -> bool:
        """Whether the value names something of one host, so that no other host can use it."""
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
    # buffers and ports of HCCL
    Variable("HCCL_BUFFSIZE", "300", ASCEND),
    Variable("P2P_HCCL_BUFFSIZE", "30", ASCEND),
    Variable("HCCL_HOST_SOCKET_PORT_RANGE", "{hccl_host}", ASCEND),
    Variable("HCCL_NPU_SOCKET_PORT_RANGE", "{hccl_npu}", ASCEND),
    # devices
    Variable("ASCEND_RT_VISIBLE_DEVICES", "{devices}", ASCEND),
    Variable("CUDA_VISIBLE_DEVICES", "{devices}", CUDA),
    Variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", CUDA),
    Variable("PYTORCH_NPU_ALLOC_CONF", "max_split_size_mb:2048", ASCEND),
    Variable("TASK_QUEUE_ENABLE", "{task_queue}", ASCEND),
    Variable("VLLM_ASCEND_ENABLE_NZ", "0", ASCEND_NZ),
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
