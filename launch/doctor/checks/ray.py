"""Other Rays on this host, whose they are, and what may lead ours to them. Ray itself is not asked."""

import re
from collections.abc import Iterator

import psutil

from launch.doctor.checking import Said, check, ok, warning
from launch.doctor.facts import Facts, RayNode
from launch.doctor.requirements import Wanted
from launch.processes import mark


def ray_nodes() -> tuple[RayNode, ...]:
    """The raylets of this host that can be seen."""
    nodes = []
    for process in psutil.process_iter(["pid", "name", "cmdline", "username"]):
        if process.info["name"] == "raylet":
            nodes.append(_node(process))
    return tuple(nodes)


def _node(process: psutil.Process) -> RayNode:
    head = re.search(r"--gcs-address=(\S+)", " ".join(process.info["cmdline"] or ()))
    user = process.info["username"] or "?"
    return RayNode(process.info["pid"], user, head[1] if head else "an unknown head", mark(process))


@check(
    "ray.running",
    looks_at=("raylets that run on this host, and whose they are", "本机正在运行的 raylet 及其归属"),
    means=(
        "two Rays live side by side on ports of their own, but both count the same devices as theirs",
        "两个 Ray 端口不同即可并存，但会把相同的设备都算作自己的",
    ),
    fix=(
        "end the one that is yours: ./run.sh stop RUN, or `ray stop` where all of them are yours",
        "结束自己的：./run.sh stop RUN；若全部属于自己可用 `ray stop`",
    ),
)
def running(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    for node in facts.ray:
        if node.run:
            yield warning(
                f"run {node.run} is on this host (raylet {node.pid})", f"wait for it, or ./run.sh stop {node.run}"
            )
        else:
            what = f"a Ray of {node.user} runs here (raylet {node.pid}, head {node.head})"
            yield warning(what, f"it is not ours and will not be touched; if it is yours and unused: kill {node.pid}")
    if not facts.ray:
        yield ok("no Ray runs here")


@check(
    "ray.address",
    looks_at=("`RAY_ADDRESS` in the environment", "环境变量 `RAY_ADDRESS`"),
    means=(
        "a run started by hand would join that cluster; `./run.sh train` does not hand the variable on",
        "手工启动的任务会加入该集群；`./run.sh train` 不会传递该变量",
    ),
    fix=("unset RAY_ADDRESS", "unset RAY_ADDRESS"),
)
def address(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    value = facts.variables.get("RAY_ADDRESS")
    if value:
        yield warning(
            f"RAY_ADDRESS={value}", "unset RAY_ADDRESS, in ~/.bashrc too; `./run.sh train` does not hand it on"
        )
    else:
        yield ok("RAY_ADDRESS is not set")
