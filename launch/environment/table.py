"""Every environment variable that a launch sets, once: name, value, why (in English and Chinese), for which stacks.

A value in braces is filled in on each host: {address}, {nic}, {hccl_family} and {devices} are the host's own,
{task_queue}, {hccl_host} and {hccl_npu} the run's. docs/environment.md is made from this table.
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
    why: str
    why_chinese: str
    stacks: tuple[str, ...]
    process: bool = False

    @property
    def of_host(self) -> bool:
        """Whether the value names something of one host, so that no other host can use it."""
        return any(field in HOSTS_OWN for _, field, _, _ in string.Formatter().parse(self.value))


NETWORK = (
    Variable(
        "HCCL_IF_IP",
        "{address}",
        "the address by which HCCL's ranks find each other; it goes before HCCL_SOCKET_IFNAME. Left alone, HCCL takes "
        "the first NIC by name, which may lead nowhere",
        "HCCL 各 rank 互相发现所用的地址，优先级高于 HCCL_SOCKET_IFNAME。不设置时 HCCL 按网卡名排序取第一块，可能不通",
        ASCEND,
    ),
    Variable(
        "HCCL_SOCKET_IFNAME",
        "={nic}",
        "the same by NIC, for what reads only this; with = because a bare name is a prefix: eth1 would also be eth10",
        "同上，按网卡名指定，供只读取此变量的组件使用；带 = 是因为裸名称按前缀匹配：eth1 也会匹配 eth10",
        ASCEND,
    ),
    Variable(
        "HCCL_SOCKET_FAMILY",
        "{hccl_family}",
        "HCCL takes IPv4 unless it is told, so hosts with IPv6 alone need AF_INET6",
        "HCCL 默认使用 IPv4，仅有 IPv6 的主机需要 AF_INET6",
        ASCEND,
    ),
    Variable(
        "GLOO_SOCKET_IFNAME",
        "{nic}",
        "gloo's NIC; otherwise gloo uses what the host's own name leads to, on Debian the loopback. A process without "
        "a cluster (the demo) has lo, which exists without a network",
        "gloo 使用的网卡；不设置时 gloo 使用主机名解析到的地址，在 Debian 上是回环地址。不在集群中的进程（demo）"
        "使用 lo，无网络时也存在",
        ALL,
        process=True,
    ),
    Variable(
        "TP_SOCKET_IFNAME",
        "{nic}",
        "the NIC of TensorPipe, which carries torch.distributed.rpc",
        "TensorPipe（承载 torch.distributed.rpc）使用的网卡",
        ALL,
    ),
    Variable(
        "NCCL_SOCKET_IFNAME",
        "={nic}",
        "the NIC over which NCCL's ranks find each other; with = because a bare name is a prefix",
        "NCCL 各 rank 互相发现所用的网卡；带 = 是因为裸名称按前缀匹配",
        CUDA,
    ),
    Variable(
        "VLLM_HOST_IP",
        "{address}",
        "vLLM's own address; otherwise it takes that of the default route, another NIC's where a host has two",
        "vLLM 自身的地址；不设置时取默认路由的地址，主机有两块网卡时可能取错",
        ALL,
    ),
)

TIMEOUTS = (
    Variable(
        "HCCL_CONNECT_TIMEOUT",
        "7200",
        "seconds until the ranks of a group have met (120 by default, 7200 at most); ranks load for many minutes",
        "通信域各 rank 建链的等待秒数（默认 120，最大 7200）：各 rank 加载时间可能相差许多分钟",
        ASCEND,
    ),
    Variable(
        "HCCL_EXEC_TIMEOUT",
        "7200",
        "seconds that a rank waits inside a collective (1836 by default): the others wait while one saves a checkpoint "
        "or ends a long rollout",
        "集合通信执行中的等待秒数（默认 1836）：某个 rank 保存 checkpoint或 rollout 较久时，其余 rank 都在等待",
        ASCEND,
    ),
    Variable(
        "HCCL_EVENT_TIMEOUT",
        "7260",
        "seconds until torch_npu gives up on an event (1868 by default). It must be above HCCL_EXEC_TIMEOUT, so that "
        "HCCL's own error comes first; runs that had 7200 for both broke this rule",
        "torch_npu 等待 Event 的秒数（默认 1868）。必须大于 HCCL_EXEC_TIMEOUT，使 HCCL 自身的错误先报出；"
        "以往两者都设为 7200 不符合此规则",
        ASCEND,
    ),
    Variable(
        "ACL_DEVICE_SYNC_TIMEOUT",
        "7200",
        "seconds until torch_npu gives up on a device's synchronization",
        "torch_npu 等待设备同步的秒数",
        ASCEND,
    ),
    Variable(
        "GLOO_SOCKET_TIMEOUT",
        "7200",
        "as the existing runs have it, for programs that read it. PyTorch's gloo does not (2.13 has no such name): its "
        "time-out is that of init_process_group",
        "沿用以往运行的设置，供读取它的程序使用。PyTorch 的 gloo 并不读取（2.13 中没有这个名字）：其超时由 "
        "init_process_group 决定",
        ASCEND,
    ),
    Variable(
        "HCCL_ASYNC_ERROR_HANDLING",
        "0",
        "torch_npu's own handling of errors (on by default) wants process groups with time-outs above HCCL's, which "
        "verl does not give them; off, as in the existing runs, so that HCCL's time-outs are the ones that count",
        "torch_npu 自身的异步错误处理（默认开启）要求进程组的超时大于 HCCL 的超时，而 verl 并不满足；"
        "与以往运行一样关闭，以 HCCL 的超时为准",
        ASCEND,
    ),
)

BUFFERS = (
    Variable(
        "HCCL_BUFFSIZE",
        "300",
        "MB; each communicator takes twice this of device memory (200 by default). A collective of more data is slower",
        "单位 MB；每个通信域占用两倍于此的设备内存（默认 200）。单次数据量超过它时通信变慢",
        ASCEND,
    ),
    Variable(
        "P2P_HCCL_BUFFSIZE",
        "30",
        "MB; send and recv have a communicator of their own with this buffer (20 by default); pipeline stages use it",
        "单位 MB；send/recv 使用独立通信域及此缓冲区（默认 20）；流水线并行各级之间使用",
        ASCEND,
    ),
    Variable(
        "HCCL_HOST_SOCKET_PORT_RANGE",
        "{hccl_host}",
        "ports on the host's NIC; trainer and engine share each NPU, so both need a port of their own. From "
        "ports.hccl_host of the inventory. CANN does not allow it on A2 beside fused MC2 operators: write auto there",
        "主机网卡上的端口；训练与推理进程共用每个 NPU，各需自己的端口。取自 inventory 的 ports.hccl_host。"
        "CANN 不支持在 A2 上与 MC² 通算融合算子同用：此时请写 auto",
        ASCEND,
    ),
    Variable(
        "HCCL_NPU_SOCKET_PORT_RANGE",
        "{hccl_npu}",
        "the same on the NPUs' own NICs; from ports.hccl_npu of the inventory",
        "同上，NPU 侧网卡上的端口；取自 inventory 的 ports.hccl_npu",
        ASCEND,
    ),
)

DEVICES = (
    Variable(
        "ASCEND_RT_VISIBLE_DEVICES",
        "{devices}",
        "the NPUs of this run, in rising order; Ray gives each worker its share of them",
        "本次运行使用的 NPU，按升序；Ray 从中给每个 worker 分配",
        ASCEND,
    ),
    Variable(
        "CUDA_VISIBLE_DEVICES",
        "{devices}",
        "the GPUs of this run; Ray gives each worker its share of them",
        "本次运行使用的 GPU；Ray 从中给每个 worker 分配",
        CUDA,
    ),
    Variable(
        "CUDA_DEVICE_ORDER",
        "PCI_BUS_ID",
        "devices then have the numbers that nvidia-smi shows; CUDA's own order is by speed",
        "使设备编号与 nvidia-smi 一致；CUDA 默认按速度排序",
        CUDA,
    ),
    Variable(
        "PYTORCH_NPU_ALLOC_CONF",
        "max_split_size_mb:2048",
        "larger blocks are not split, which keeps memory from falling into pieces between rollout and training. "
        "expandable_segments cannot be combined with it, nor with vLLM's sleep mode",
        "更大的内存块不再切分，避免 rollout 与训练交替时产生碎片。不能与 expandable_segments 同用，后者也不能与 "
        "vLLM 的 sleep 模式同用",
        ASCEND,
    ),
    Variable(
        "TASK_QUEUE_ENABLE",
        "{task_queue}",
        "2 overlaps more of the preparation of operators, at a higher peak of memory; 1 where the rollout captures "
        "graphs, which level 2 breaks. With verl 0.9.1, VLLM_ASCEND_TASK_QUEUE_ENABLE is the rollout's alone",
        "2 使算子下发重叠更多，但内存峰值更高；rollout 使用图模式时为 1，因为 2 与图模式冲突。verl 0.9.1 可用 "
        "VLLM_ASCEND_TASK_QUEUE_ENABLE 单独设置 rollout",
        ASCEND,
    ),
    Variable(
        "VLLM_ASCEND_ENABLE_NZ",
        "0",
        "vllm-ascend's own casts of weights to FRACTAL_NZ do not survive a sleep; ascend_quant's do and stay on. "
        "vllm-ascend 0.27 and newer do not read it: recipes set `additional_config.weight_nz_mode=0` there",
        "vllm-ascend 自身把权重转为 FRACTAL_NZ 的结果在 sleep 后失效；ascend_quant 的转换不受影响，保持开启。"
        "vllm-ascend 0.27 及更新版本不读取它：recipe 在那里设置 `additional_config.weight_nz_mode=0`",
        ASCEND_NZ,
    ),
)

RAY = (
    Variable("RAY_USAGE_STATS_ENABLED", "0", "no usage reports from Ray", "Ray 不上报使用统计", ALL, process=True),
    Variable(
        "RAY_DEDUP_LOGS",
        "1",
        "a line that all workers print appears once, with a count",
        "所有 worker 打印的同一行只显示一次并带计数",
        ALL,
    ),
    Variable(
        "RAY_health_check_period_ms",
        "2000",
        "Ray's head asks each node this often; with the next two, a node that falls silent is dead after 24 s at most, "
        "where Ray's own values took a minute (63.7 s with the link down)",
        "Ray head 检查各节点的间隔；与下面两项一起，失联节点最多 24 秒后判定死亡，"
        "Ray 默认值约需一分钟（断网实测 63.7 秒）",
        ALL,
    ),
    Variable("RAY_health_check_timeout_ms", "4000", "how long it waits for the answer", "等待回应的时间", ALL),
    Variable(
        "RAY_health_check_failure_threshold",
        "4",
        "how many answers may be missing: a busy host is slow now and then",
        "允许缺失的回应次数：繁忙的主机偶尔会慢",
        ALL,
    ),
)

PROCESSES = (
    Variable("HYDRA_FULL_ERROR", "1", "the whole traceback of an error in verl", "显示 verl 出错时的完整回溯", ALL),
    Variable(
        "PYTHONUNBUFFERED",
        "1",
        "the last lines before a crash must reach the log",
        "崩溃前的最后几行必须写入日志",
        ALL,
        process=True,
    ),
    Variable("VLLM_NO_USAGE_STATS", "1", "no usage reports from vLLM", "vLLM 不上报使用统计", ALL, process=True),
    Variable(
        "TOKENIZERS_PARALLELISM",
        "false",
        "processes fork after the tokenizer was used",
        "进程在使用 tokenizer 之后还会 fork",
        ALL,
        process=True,
    ),
)

ON_CPU = (
    Variable(
        "VERL_PLATFORM",
        "cpu",
        "our verl plugin registers a `cpu` platform; verl itself knows cuda and npu",
        "我们的 verl 插件注册了 `cpu` 平台；verl 自身只有 cuda 和 npu",
        CPU,
        process=True,
    ),
    Variable(
        "VERL_ENGINE_DEVICE",
        "cuda",
        "verl registers its FSDP engines for cuda and npu only; ours is cuda's",
        "verl 只为 cuda 和 npu 注册 FSDP 引擎；这里使用 cuda 的",
        CPU,
        process=True,
    ),
    Variable(
        "VLLM_CPU_KVCACHE_SPACE",
        "1",
        "GiB of KV cache; vLLM would take a share of the whole memory",
        "KV cache 的 GiB 数；不设置时 vLLM 按整机内存的比例占用",
        CPU,
        process=True,
    ),
    Variable(
        "VLLM_CPU_OMP_THREADS_BIND",
        "nobind",
        "the trainer and the engine share the same few cores",
        "训练与推理共用少数几个核",
        CPU,
        process=True,
    ),
    Variable(
        "OMP_NUM_THREADS",
        "1",
        "more threads than cores only wait for each other in a tiny model",
        "模型很小时，线程多于核数只会互相等待",
        CPU,
        process=True,
    ),
    Variable(
        "HF_HUB_OFFLINE",
        "1",
        "what runs on a CPU makes its own model and downloads nothing",
        "在 CPU 上运行的任务自带模型，不下载任何内容",
        CPU,
        process=True,
    ),
    Variable("TRANSFORMERS_OFFLINE", "1", "as above, for transformers", "同上，用于 transformers", CPU, process=True),
)

TABLE = (*NETWORK, *TIMEOUTS, *BUFFERS, *DEVICES, *RAY, *PROCESSES, *ON_CPU)
