"""Versions of Python, packages, CANN, driver and chip: against the stack's pins, and against each other."""

import json
import platform
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

from launch.doctor.checking import Said, check, error, ok, warning
from launch.doctor.facts import Facts, Package, Software
from launch.doctor.requirements import Wanted
from launch.software import own_packages, sources
from launch.stacks import Pins, pins

CANN_FOLDERS = ("usr/local/Ascend/cann", "usr/local/Ascend/ascend-toolkit/latest")
CANN_FILE = "*-linux/ascend_toolkit_install.info"
CHIP_VARIABLE = "ASCEND_QUANT_CHIP"  # set by our images: A2 or A3
# Drivers (Ascend HDK) that a CANN works with, by the release notes of CANN 8.5.0 and 9.1.0 on hiascend.com:
# CANNCommunityEdition/850/releasenote, CANNCommunityEdition/910/softwareinst/releasenote/9.1.0.
DRIVERS = {
    "8.5": ("25.0", "25.2", "25.3", "25.5"),
    "9.1": ("25.2", "25.3", "25.5", "25.7", "26.0", "26.1"),
}
PRODUCTS = {"ascend910b": "A2", "ascend910_93": "A3"}


def software(environment: Mapping[str, str], root: Path = Path("/")) -> Software:
    """The versions of this interpreter's environment, and of CANN."""
    cann, where = cann_version(root, environment)
    return Software(
        python=platform.python_version(),
        packages=installed_packages(),
        sources=sources(own_packages()),
        cann=cann,
        cann_from=where,
        chip_of_image=environment.get(CHIP_VARIABLE) or chip_of_build(),
    )


def installed_packages() -> dict[str, Package]:
    """Every installed package; of one that is there twice, the first on sys.path, which is the one imported."""
    found: dict[str, Package] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(plain(name), Package(distribution.version, commit(distribution)))
    return found


def plain(name: str) -> str:
    """A package's name as the index compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def commit(distribution: Distribution) -> str | None:
    """The commit that a package was built from, where its installer (PEP 610) or its version (+gHASH) says it."""
    direct = distribution.read_text("direct_url.json")
    if direct and (said := json.loads(direct).get("vcs_info", {}).get("commit_id")):
        return said
    found = re.search(r"\+(?:.*\.)?g([0-9a-f]{7,40})", distribution.version)
    return found[1] if found else None


def cann_version(root: Path, environment: Mapping[str, str]) -> tuple[str | None, str]:
    """CANN's version and the file that says it; or None, and where it was looked for."""
    set_by = next((name for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if environment.get(name)), None)
    folders = [Path(environment[set_by])] if set_by else [root / folder for folder in CANN_FOLDERS]
    for folder in folders:
        for file in sorted(folder.glob(CANN_FILE)):
            found = re.search(r"(?m)^version=(\S+)", file.read_text(errors="replace"))
            if found:
                return found[1], str(file)
    return None, f"{' or '.join(map(str, folders))}{f' ({set_by})' if set_by else ''}"


def chip_of_build() -> str | None:
    """What the installed vllm-ascend was built for: its _build_info.py says the SoC (0.10) or the product (0.23)."""
    for distribution in distributions(name="vllm-ascend"):
        file = Path(str(distribution.locate_file("vllm_ascend/_build_info.py")))
        if file.is_file():
            found = re.search(r"__(?:soc_version|device_type)__ *= *['\"](\w+)['\"]", file.read_text())
            return found[1] if found else None
    return None


@check(
    "versions.packages",
    looks_at=(
        "Python and the installed packages, beside the stack's pins in `docker/stacks.yaml`; a build's own suffix "
        "(`+cpu`) does not count",
        "Python 与已安装的包，对照 `docker/stacks.yaml` 中软件栈的锁定版本；构建后缀（`+cpu`）不计",
    ),
    means=(
        "the stack was tried with these versions alone; others fail in ways that point elsewhere",
        "软件栈只在这些版本上验证过；其他版本的报错往往指向别处",
    ),
    fix=("use the stack's image, or install the pinned version", "使用该软件栈的镜像，或安装锁定版本"),
)
def packages(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    stack, software = pins(wanted.stack), facts.software
    problems = list(_differences(stack, software.packages))
    if not software.python.startswith(stack.python + "."):
        problems.append(error(f"Python {software.python}; {wanted.stack} has {stack.python}", "use the stack's image"))
    yield from problems
    if not problems:
        count = len({*stack.packages, *stack.sources})
        yield ok(f"Python {software.python} and {count} packages as pinned")


def _differences(stack: Pins, installed: dict[str, Package]) -> Iterator[Said]:
    for name in sorted({*stack.packages, *stack.sources}):
        version, source = stack.packages.get(name), stack.sources.get(name)
        found, wanted = installed.get(plain(name)), f"{name}=={version}"
        if source:
            wanted = f"{name} @ git+{source.repository}@{source.commit}"
        if found is None:
            yield error(f"{name} is not installed", f"install {wanted}")
        elif source and found.commit:
            if not source.commit.startswith(found.commit):
                what = f"{name} is of commit {found.commit[:12]}; pinned is {source.commit[:12]}"
                yield error(what, f"install {wanted}")
        elif version and public(found.version) != version:
            yield error(f"{name} {found.version}; pinned is {version}", f"pip install {name}=={version}")


@check(
    "versions.imports",
    looks_at=(
        "with `--recipe`: whether this Python finds the modules that the recipe's processes will import (the trainer's "
        "engine and attention, vLLM and our plugin, trackers), without importing them",
        "使用 `--recipe` 时：当前 Python 能否找到该 recipe 各进程将要导入的模块（训练引擎与注意力、vLLM 与"
        "本项目的插件、日志工具），不实际导入",
    ),
    means=(
        "verl imports most of them in its workers, minutes after the start; `train` refuses to start Ray without them",
        "verl 在启动数分钟后才在 worker 中导入其中大部分；缺少时 `train` 不会启动 Ray",
    ),
    fix=("install it, or set what does without it", "安装该模块，或改用不需要它的设置"),
)
def imports(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    for one in facts.missing:
        yield error(one.what, one.fix)
    if wanted.imports and not facts.missing:
        yield ok(f"the {len(wanted.imports)} modules that the recipe needs are installed")


def public(version: str) -> str:
    """A version without the suffix that a build adds."""
    return version.partition("+")[0]


@check(
    "versions.cann",
    looks_at=(
        "the version in CANN's `ascend_toolkit_install.info`, below `ASCEND_HOME_PATH` or `/usr/local/Ascend`, beside "
        "the stack's pin",
        "`ASCEND_HOME_PATH` 或 `/usr/local/Ascend` 下 CANN 的 `ascend_toolkit_install.info` 中的版本，对照软件栈",
    ),
    means=(
        "torch_npu and vllm-ascend are built against one CANN; with another they miss operators or symbols",
        "torch_npu 与 vllm-ascend 针对特定的 CANN 构建；换用其他版本会缺少算子或符号",
    ),
    fix=(
        "use the stack's image, or source the set_env.sh of the right CANN",
        "使用该软件栈的镜像，或 source 正确版本 CANN 的 set_env.sh",
    ),
)
def cann(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    pinned, software = pins(wanted.stack).cann, facts.software
    if pinned is None:
        return
    if software.cann is None:
        yield error(f"no CANN in {software.cann_from}", "source /usr/local/Ascend/ascend-toolkit/set_env.sh")
    elif software.cann != pinned:
        yield error(
            f"CANN {software.cann} ({software.cann_from}); pinned is {pinned}", f"use the image of {wanted.stack}"
        )
    else:
        yield ok(f"CANN {software.cann}")


@check(
    "versions.driver",
    looks_at=(
        "the driver's version beside the table of Ascend HDK versions in CANN's release notes",
        "驱动版本，对照 CANN 版本说明中的 Ascend HDK 配套表",
    ),
    means=(
        "CANN calls functions of the driver that an older one does not have",
        "CANN 会调用旧驱动中没有的函数",
    ),
    fix=("install an Ascend HDK of the table", "安装配套表中的 Ascend HDK"),
)
def driver(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    found, cann_found = facts.devices.driver, facts.software.cann
    if facts.devices.tool != "npu-smi" or found is None or cann_found is None:
        return
    listed = DRIVERS.get(".".join(cann_found.split(".")[:2]))
    if listed is None:
        yield warning(f"driver {found} with CANN {cann_found}: not in our table", "look in CANN's release notes")
        return
    series, names = _series(found), ", ".join(f"{one}.x" for one in listed)
    if series in listed:
        yield ok(f"driver {found} is for CANN {cann_found}")
    elif _numbers(series) < _numbers(listed[0]):
        yield error(
            f"driver {found} is too old for CANN {cann_found}, which wants {names}", "install a newer Ascend HDK"
        )
    else:
        yield warning(f"driver {found} is not in the table of CANN {cann_found}: {names}", "see CANN's release notes")


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _numbers(series: str) -> list[int]:
    return [int(part) if part.isdecimal() else 0 for part in series.split(".")]


@check(
    "versions.torch_npu",
    looks_at=("the versions of torch and torch_npu beside each other", "torch 与 torch_npu 的版本是否对应"),
    means=("torch_npu fails at its import with another torch", "torch 版本不对应时 torch_npu 导入即失败"),
    fix=("install the torch_npu of that torch", "安装与 torch 对应的 torch_npu"),
)
def torch_npu(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    torch, npu = (facts.software.packages.get(name) for name in ("torch", "torch-npu"))
    if torch is None or npu is None:
        return
    if public(npu.version).split(".")[:3] == public(torch.version).split(".")[:3]:
        yield ok(f"torch_npu {npu.version} is for torch {torch.version}")
    else:
        fix = f"pip install torch-npu=={public(torch.version)}, or the torch of torch_npu {npu.version}"
        yield error(f"torch_npu {npu.version} with torch {torch.version}", fix)


@check(
    "versions.triton",
    looks_at=("whether triton and triton-ascend are both installed", "是否同时安装了 triton 与 triton-ascend"),
    means=(
        "both install the module `triton`, one over the other: the import finds files of both and fails",
        "两者都安装 `triton` 模块并互相覆盖，导入时会混用文件而失败",
    ),
    fix=("uninstall both, then install triton-ascend again", "先全部卸载，再重新安装 triton-ascend"),
)
def triton(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    installed = facts.software.packages
    plain_one, ascend = installed.get("triton"), installed.get("triton-ascend")
    if plain_one and ascend:
        pinned = pins(wanted.stack).packages.get("triton-ascend", ascend.version)
        yield error(
            f"triton {plain_one.version} and triton-ascend {ascend.version} overwrite each other",
            f"pip uninstall -y triton triton-ascend && pip install triton-ascend=={pinned}",
        )
    elif plain_one and pins(wanted.stack).devices == "npu":
        yield error(f"triton {plain_one.version} does not know NPUs", "pip uninstall -y triton")
    elif ascend:
        yield ok(f"triton-ascend {ascend.version} alone")


@check(
    "versions.chip",
    looks_at=(
        "the SoC by `npu-smi info -t board` (910B*: A2, 910_93*: A3), and the chip that the image or the installed "
        "vllm-ascend was built for (`ASCEND_QUANT_CHIP`, vllm_ascend/_build_info.py)",
        "`npu-smi info -t board` 给出的 SoC（910B*：A2，910_93*：A3），以及镜像或已安装的 vllm-ascend 的目标芯片"
        "（`ASCEND_QUANT_CHIP`、vllm_ascend/_build_info.py）",
    ),
    means=(
        "kernels of one chip do not load on the other: an A2 image on an A3 fails at the first operator",
        "两种芯片的算子互不通用：A2 镜像在 A3 上执行第一个算子即失败",
    ),
    fix=("use the image of your chip", "使用与芯片对应的镜像"),
)
def chip(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    served, soc = pins(wanted.stack).chips, facts.devices.chip
    if not served or soc is None:
        return
    here, image = product(soc), product(facts.software.chip_of_image or "")
    if here not in served:
        yield error(f"the chip is {soc}; stack {wanted.stack} is for {' and '.join(served)}", "take another stack")
    elif image is None:
        yield warning(f"{soc} ({here}); for which chip vllm-ascend was built cannot be seen", "use our image")
    elif image != here:
        yield error(f"an image for {image} on {here} ({soc})", f"use the image of {wanted.stack} for {here}")
    else:
        yield ok(f"{soc} ({here}), as the image")


def product(chip_name: str) -> str | None:
    """A2 or A3, of a SoC's name or of that word itself."""
    return next(
        (word for start, word in PRODUCTS.items() if chip_name.lower().startswith(start) or chip_name == word), None
    )
