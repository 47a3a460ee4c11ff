"""What multiplies the rollout's codes, and what still patches vLLM: asked by the commands of ascend_quant."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from launch.doctor.checking import Said, check, error, ok, warning
from launch.doctor.facts import Facts, Kernels
from launch.doctor.requirements import Wanted
from launch.programs import ask
from launch.stacks import pins

SECONDS = 120  # it imports torch, and on an NPU or a GPU starts the driver


def kernels(device: str) -> Kernels:
    """What `ascend-quant kernels` and `ascend-quant cleanup` say; the latter asks before it changes anything."""
    command = str(Path(sys.executable).with_name("ascend-quant"))
    cleanup = ask([command, "cleanup"], SECONDS)  # no terminal, so nobody says yes
    patch = cleanup.output if cleanup.problem else ""
    answer = ask([command, "kernels", device, "--json"], SECONDS)
    if answer.problem:
        return Kernels(problem=answer.problem, patch=patch)
    said = json.loads(answer.output)
    return Kernels(said["device"], said["products"], patch=patch, missing=said["missing"])


@check(
    "kernels.product",
    looks_at=(
        "`ascend-quant kernels DEVICE`, which quantizes a small weight there and compares its bytes with the oracle's",
        "`ascend-quant kernels DEVICE`：在设备上量化一个小权重，并与参考实现逐字节比较",
    ),
    means=(
        "whether the scheme of the rollout is served here, and by which kernel",
        "本机是否支持 rollout 的量化方案，以及由哪个 kernel 或算子计算",
    ),
    fix=("install the stack, or choose a scheme that is served here", "安装该软件栈，或选择本机支持的方案"),
)
def product(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    kernels, scheme = facts.kernels, wanted.scheme or "int8"
    for file, names in kernels.missing.items():
        libraries = ", ".join(names)
        yield error(
            f"{file} needs {libraries}, which is not here", f"install the package of the system with {libraries}"
        )
    if kernels.problem:
        yield error(kernels.problem, "run it by hand; then look at the findings of devices and versions")
    elif scheme == "bf16":
        yield ok("bf16: the engine's own kernels")
    elif scheme not in kernels.products:
        served = ", ".join(kernels.products)
        yield error(
            f"{scheme} is not served on {kernels.device}, which has {served}", f"--set rollout.scheme=.. ({served})"
        )
    else:
        by = kernels.products[scheme]
        slow = by == "torch in float64"
        text = f"{scheme} on {kernels.device}: {by}"
        yield warning(text, "this CPU's int8 product saturates: use one with VNNI") if slow else ok(text)


@check(
    "kernels.flashrl",
    looks_at=(
        "`ascend-quant cleanup`, which looks for FlashRL's lines in usercustomize.py",
        "`ascend-quant cleanup`：查找 usercustomize.py 中 FlashRL 的语句",
    ),
    means=(
        "FlashRL patches vllm.LLM at every start of Python, under our plugin's feet",
        "FlashRL 会在每次启动 Python 时修改 vllm.LLM，与本插件冲突",
    ),
    fix=("ascend-quant cleanup", "ascend-quant cleanup"),
)
def flashrl(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    if facts.kernels.patch:
        yield error("FlashRL's patch is in this environment", "ascend-quant cleanup")
    else:
        yield ok("no patch of FlashRL's")


@check(
    "kernels.plugins",
    looks_at=(
        "whether ascend-quant is installed, not only on the path",
        "ascend-quant 是否已安装，而不只是在搜索路径中",
    ),
    means=(
        "vLLM and verl find its plugins by the entry points of the installed package",
        "vLLM 与 verl 通过已安装包的入口点找到插件",
    ),
    fix=("pip install -e . in the checkout", "在代码目录中执行 pip install -e ."),
)
def plugins(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    installed = facts.software.packages.get("ascend-quant")
    if installed is None:
        where = f"the Python of stack {wanted.stack} ({pins(wanted.stack).python})"
        yield error(
            "ascend-quant is not installed, so vLLM and verl do not find its plugins", f"pip install -e . with {where}"
        )
    else:
        yield ok(f"ascend-quant {installed.version}")
