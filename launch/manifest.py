"""The manifest of an image, from inside: `docker run IMAGE python -m launch.manifest` prints it as JSON.

It is sorted and has no dates, so two builds of the same commit print the same manifest. No listed package is imported.
"""

import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from shutil import which
from typing import Any

from ascend_quant.processes.environment import CHIP_VARIABLE, STACK_VARIABLE
from launch.system.software import Package, cann_version, chip_of_build, commit, plain

DEBS = ("dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package}:${Architecture} ${Version}\\n")
RPMS = ("rpm", "--query", "--all", "--queryformat", "installed %{NAME}:%{ARCH} %{EVR}\\n")
REVISION_VARIABLE = "ASCEND_QUANT_REVISION"  # this project's commit, set in our images


def manifest(environment: Mapping[str, str], root: Path = Path("/")) -> dict[str, Any]:
    """Return stack, chip and commit of this image, and the versions of all packages in it.

    Raises:
        KeyError: a variable of our images is missing, so this is not one of them.
    """
    system = platform.freedesktop_os_release()
    return {
        "stack": environment[STACK_VARIABLE],
        "chip": environment.get(CHIP_VARIABLE) or None,
        "built_for": chip_of_build(),
        "revision": environment[REVISION_VARIABLE],
        "architecture": platform.machine(),
        "system": f"{system['ID']} {system.get('VERSION_ID', 'without a version')}",
        "python": platform.python_version(),
        "cann": cann_version(root, environment)[0],
        "cuda": cuda(),
        "packages": {name: asdict(package) for name, package in packages().items()},
        "system_packages": system_packages(),
    }


def packages() -> dict[str, Package]:
    """Return the packages of this interpreter's environment, without CANN's, which are on PYTHONPATH."""
    folders = list(dict.fromkeys(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")))
    return {plain(one.metadata["Name"]): Package(one.version, commit(one)) for one in distributions(path=folders)}


def system_packages() -> dict[str, str]:
    """Return the installed packages of Debian and Ubuntu, or of openEuler, as name:architecture.

    Raises:
        OSError, CalledProcessError: neither dpkg-query nor rpm exists, or it failed.
    """
    listed = subprocess.run(DEBS if which("dpkg-query") else RPMS, check=True, capture_output=True, text=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return {name: version for state, name, version in (row for row in rows if len(row) == 3) if state == "installed"}


def cuda() -> str | None:
    """Return the CUDA version with which torch was built, from its version file."""
    for distribution in distributions(name="torch"):
        file = Path(str(distribution.locate_file("torch/version.py")))
        found = re.search(r"(?m)^cuda\b.*= *'([\d.]+)'", file.read_text()) if file.is_file() else None
        return found[1] if found else None
    return None


if __name__ == "__main__":
    try:
        json.dump(manifest(os.environ), sys.stdout, indent=1, sort_keys=True, ensure_ascii=False)
    except KeyError as missing:
        sys.exit(f"{missing} is not set: this is for our images, as `docker run IMAGE python -m launch.manifest`")
    print()
