"""RDMA between hosts with GPUs: without it NCCL takes TCP, and says so only in its log."""

from collections.abc import Iterator

from launch.doctor.checking import Said, check, ok, warning
from launch.doctor.facts import Facts
from launch.doctor.wanted import Wanted
from launch.stacks import pins


@check(
    "links.rdma",
    looks_at=(
        "the adapters in `/sys/class/infiniband`, the files in `/dev/infiniband` by which processes reach them, and "
        "whether `libibverbs.so.1`, which NCCL loads at run time, can be loaded",
        "`/sys/class/infiniband` 中的网卡、`/dev/infiniband` 中的设备文件，以及 NCCL 运行时加载的 "
        "`libibverbs.so.1` 能否加载",
    ),
    means=(
        "between hosts NCCL takes TCP where one of them is missing, and says so only in its log: weight syncs and "
        "gradients are many times slower",
        "缺少其中之一时，NCCL 在主机间改用 TCP，且只写在它的日志里：权重同步与梯度通信会慢很多倍",
    ),
    fix=(
        "in a container map the devices: docker run --device /dev/infiniband (the launcher does); on a host install "
        "ibverbs-providers and libibverbs1",
        "容器内需映射设备：docker run --device /dev/infiniband（启动器会自动添加）；主机上安装 ibverbs-providers 与 "
        "libibverbs1",
    ),
)
def rdma(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    found = facts.rdma
    if pins(wanted.stack).devices != "gpu" or wanted.hosts == 1 or not found.adapters:
        return
    adapters = ", ".join(found.adapters)
    if not any(name.startswith("uverbs") for name in found.devices):
        yield warning(
            f"{adapters}, and no /dev/infiniband/uverbs*: NCCL takes TCP", "docker run --device /dev/infiniband"
        )
    elif found.problem:
        yield warning(f"{found.problem}: NCCL takes TCP", "apt-get install ibverbs-providers libibverbs1")
    else:
        yield ok(adapters)
