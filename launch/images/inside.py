"""The manifest, read from within an image: `docker run IMAGE manifest`. Nothing is imported that is looked at."""

import json
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

from launch.doctor.gather.software import CHIP_VARIABLE, cann_version, chip_of_build, commit, plain
from launch.doctor.gather.tools import ask
from launch.errors import LaunchError
from launch.images.compiled import compiled
from launch.images.manifest import Manifest, Package
from launch.stacks import STACK_VARIABLE

REVISION_VARIABLE = "ASCEND_QUANT_REVISION"  # set by our images
KERNELS_SECONDS = 300  # it imports torch
CPU = "cpu"


def manifest(environment: Mapping[str, str], root: Path = Path("/")) -> Manifest:
    """What this image is made of.

    Raises:
        LaunchError: this is none of our images, or a program that tells versions failed.
    """
    for name in (STACK_VARIABLE, REVISION_VARIABLE):
        if not environment.get(name):
            raise LaunchError(f"{name} is not set: this is for our images, as `docker run IMAGE manifest`")
    stack = environment[STACK_VARIABLE]
    system = platform.freedesktop_os_release()
    return Manifest(
        stack=stack,
        chip=environment.get(CHIP_VARIABLE) or None,
        built_for=chip_of_build(),
        revision=environment[REVISION_VARIABLE],
        architecture=platform.machine(),
        system=f"{system['ID']} {system.get('VERSION_ID', 'without a version')}",
        python=platform.python_version(),
        cann=cann_version(root, environment)[0],
        cuda=cuda(),
        packages=packages(),
        system_packages=system_packages(),
        compiled=compiled(),
        products=products() if stack == CPU else {},
    )


def packages() -> dict[str, Package]:
    """The packages of this interpreter's own environment; those that PYTHONPATH brings are CANN's."""
    folders = list(dict.fromkeys(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")))
    found = {plain(one.metadata["Name"]): one for one in distributions(path=folders)}
    return {name: Package(version=one.version, commit=commit(one)) for name, one in found.items()}


def system_packages() -> dict[str, str]:
    """The installed packages of Debian or Ubuntu."""
    answer = ask(
        ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package}:${Architecture} ${Version}\\n"]
    )
    if answer.problem:
        raise LaunchError(
            f"the system's packages cannot be listed: {answer.problem}: our images are of Debian or Ubuntu"
        )
    rows = [line.split() for line in answer.output.splitlines()]
    return {name: version for state, name, version in (row for row in rows if len(row) == 3) if state == "installed"}


def cuda() -> str | None:
    """The CUDA that torch was built with, from its file of versions."""
    for distribution in distributions(name="torch"):
        file = Path(str(distribution.locate_file("torch/version.py")))
        found = re.search(r"(?m)^cuda\b.*= *'([\d.]+)'", file.read_text()) if file.is_file() else None
        return found[1] if found else None
    return None


def products() -> dict[str, str]:
    """What multiplies on a CPU."""
    command = [str(Path(sys.executable).with_name("ascend-quant")), "kernels", CPU, "--json"]
    answer = ask(command, KERNELS_SECONDS)
    if answer.problem:
        raise LaunchError(answer.problem)
    return json.loads(answer.output)["products"]
