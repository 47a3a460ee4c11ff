"""Environment variables that contradict the host, each other, or the run."""

from collections.abc import Iterator

from launch.doctor.checking import Said, check, error, ok, warning
from launch.doctor.facts import Facts
from launch.doctor.requirements import Wanted
from launch.stacks import pins

ADDRESSES = ("HCCL_IF_IP", "VLLM_HOST_IP")
EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")  # a name, or several with commas
PATTERNS = ("HCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # beginnings of names; =NAME is exact, ^NAME excludes
ALLOCATORS = {"npu": ("PYTORCH_NPU_ALLOC_CONF",), "gpu": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
BLOCKING = ("ASCEND_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING")


@check(
    "variables.address",
    looks_at=("HCCL_IF_IP and VLLM_HOST_IP beside the addresses of this host", "HCCL_IF_IP、VLLM_HOST_IP 与本机地址"),
    means=(
        "an address of another host, often from a copied script, makes HCCL wait until it times out",
        "地址属于其他主机（常来自复制的脚本）时，HCCL 会等到超时",
    ),
    fix=("unset it: the launcher sets it for each host", "unset 即可：启动器会为每台主机设置"),
)
def address(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    here = [address for addresses in facts.network.nics.values() for address in addresses]
    for name in ADDRESSES:
        if (value := facts.variables.get(name)) is not None:
            yield _judged(name, value, wanted, value in here, f"is no address of this host ({', '.join(here)})")


@check(
    "variables.nic",
    looks_at=(
        "GLOO_, TP_, HCCL_ and NCCL_SOCKET_IFNAME beside the NICs of this host",
        "GLOO_、TP_、HCCL_、NCCL_SOCKET_IFNAME 与本机网卡",
    ),
    means=(
        "gloo fails at once with a NIC that is not there; HCCL and NCCL find no NIC",
        "网卡不存在时 gloo 立即失败，HCCL 与 NCCL 找不到网卡",
    ),
    fix=("unset it: the launcher sets it for each host", "unset 即可：启动器会为每台主机设置"),
)
def nic(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    names = list(facts.network.nics)
    for name in (*EXACT, *PATTERNS):
        if (value := facts.variables.get(name)) is not None:
            exact = name in EXACT
            fits = set(value.split(",")) <= set(names) if exact else any(_matches(value, one) for one in names)
            yield _judged(name, value, wanted, fits, f"names no NIC of this host ({', '.join(names)})")


def _judged(name: str, value: str, wanted: Wanted, fits: bool, why: str) -> Said:
    """A wrong value is fatal where it wins: the inventory's, or that of the shell that starts a run here."""
    if fits:
        return ok(f"{name}={value}")
    if name in wanted.environment:
        return error(f"{name}={value} {why}", f"take {name} out of the inventory: the launcher sets it")
    if wanted.hosts == 1:
        return error(f"{name}={value} {why}", f"unset {name}, in ~/.bashrc too: the launcher sets it")
    return warning(f"{name}={value} {why}", f"unset {name} in ~/.bashrc; over ssh the launcher's own value wins")


def _matches(pattern: str, nic: str) -> bool:
    """Whether HCCL and NCCL take a NIC by this value."""
    words = pattern.lstrip("^=").split(",")
    if pattern.startswith("^"):
        return not any(nic.startswith(word.lstrip("=")) for word in words)
    return nic in words if pattern.startswith("=") else any(nic.startswith(word) for word in words)


@check(
    "variables.allocator",
    looks_at=(
        "expandable segments in PYTORCH_NPU_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF, beside vLLM's sleep mode",
        "PYTORCH_NPU_ALLOC_CONF 或 PYTORCH_CUDA_ALLOC_CONF 中的 expandable_segments 与 vLLM 的 sleep 模式",
    ),
    means=(
        "vLLM's sleep mode has an allocator of its own, which refuses to start with expandable segments",
        "vLLM 的 sleep 模式使用自己的分配器，与 expandable segments 不兼容，会拒绝启动",
    ),
    fix=("take expandable_segments:True out of the variable", "从变量中去掉 expandable_segments:True"),
)
def allocator(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    for name in ALLOCATORS.get(pins(wanted.stack).devices, ()):
        value = facts.variables.get(name, "")
        if "expandable_segments:true" in value.lower().replace(" ", "") and wanted.sleeps:
            rest = ",".join(one for one in value.split(",") if "expandable_segments" not in one)
            yield error(f"{name}={value} with vLLM's sleep mode", f"export {name}={rest}" if rest else f"unset {name}")
        elif value:
            yield ok(f"{name}={value}")


@check(
    "variables.blocking",
    looks_at=("ASCEND_LAUNCH_BLOCKING and CUDA_LAUNCH_BLOCKING", "ASCEND_LAUNCH_BLOCKING 与 CUDA_LAUNCH_BLOCKING"),
    means=(
        "left on from debugging, every operator waits for the one before: several times slower",
        "调试后忘记关闭会使每个 kernel 或算子都同步等待，慢数倍",
    ),
    fix=("unset it", "unset 该变量"),
)
def blocking(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    for name in BLOCKING:
        value = facts.variables.get(name, "0")
        if value not in ("", "0"):
            yield warning(f"{name}={value}: every operator waits for the one before", f"unset {name}")


@check(
    "variables.ports",
    looks_at=(
        "HCCL_HOST_SOCKET_PORT_RANGE beside the inventory's `hccl_host`",
        "HCCL_HOST_SOCKET_PORT_RANGE 与 inventory 的 `hccl_host`",
    ),
    means=(
        "the user's own range wins, so the ports that were looked at are others",
        "用户自己的端口段优先，因此检查过的端口并非实际使用的",
    ),
    fix=("say it in the inventory: ports: {hccl_host: ..}", "写在 inventory 中：ports: {hccl_host: ..}"),
)
def ports(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    value, planned = facts.variables.get("HCCL_HOST_SOCKET_PORT_RANGE"), wanted.ports["hccl_host"]
    if value and value != planned:
        what = f"HCCL_HOST_SOCKET_PORT_RANGE={value}, while the inventory says {planned}"
        yield warning(what, "unset it, or write it into the inventory as ports: {hccl_host: ..}")
