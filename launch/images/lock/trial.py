"""`images try LOCK`: a lock is installed here, outside of any container, and what it wants is imported.

What metadata does not say shows here alone: datasets 2.14 allows a pyarrow beside which it cannot be imported.
"""

import json
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launch.errors import LaunchError
from launch.images.lock.packages import LOCKS, Lock, install_uv, locked, machine, names, run
from launch.software import plain

APART = {"torch": "torch", "torchgen": "torch", "vllm": "vllm", "megatron": "megatron-core"}  # built or fetched apart
IMPORTER = Path(__file__).with_name("importer.py")


@dataclass(frozen=True)
class Imported:
    """A module of a wanted package; `error` says how its import failed."""

    package: str
    module: str
    error: str | None


@dataclass
class Trial:
    """What came of it.

    Attributes:
        imported: every module.
        absent: locks that could not be installed here, with the reason.
        there: the packages that were installed.
    """

    imported: list[Imported]
    absent: dict[str, str]
    there: set[str]

    @property
    def failed(self) -> list[Imported]:
        """What fails for a reason of its own: not for what is absent, nor for a vendor's library that no lock has."""
        return [one for one in self.imported if one.error and not self.excused(one.error)]

    def excused(self, error: str) -> bool:
        """Whether an import stopped at what these locks do not bring here: a vendor's library, torch, vLLM."""
        lacks = re.search(r"No module named '(\w+)", error)
        return ".so" in error or bool(lacks and APART.get(lacks[1], "") not in {*self.there, ""})


def wanted(lock: Lock) -> list[str]:
    """The packages that NAME.in names, but for those that are left out."""
    lines = (line.partition("#")[0].strip() for line in lock.wanted.read_text().splitlines())
    found = [plain(re.match(r"[\w.-]+", line)[0]) for line in lines if line and not line.startswith("-")]
    return [name for name in found if name not in lock.settings.get("leave out", "").split()]


def try_locks(stack: str, folder: Path, tell: Callable[[str], None]) -> Trial:
    """Install and import the locks of a stack, or the one of that name, below a folder.

    Raises:
        LaunchError: there is no such lock, no such Python here, or nothing could be installed.
    """
    locks = [Lock(name) for name in names(stack)]
    image = [lock for lock in locks if lock.name.endswith("-image")]
    locks = [lock for lock in locks if lock.name.endswith(".torch") or not image or lock in image]
    uv, environment = install_uv(folder), folder / "environment"
    run(uv, "venv", "--quiet", "--no-python-downloads", "--python", f"python{locks[0].python}", environment)
    python, absent = environment / "bin/python", {}
    for lock in locks:
        tell(f"installing {lock.file.name}")
        options = ["--quiet", "--no-deps", "--require-hashes", f"--build-constraint={LOCKS / 'uv.txt'}"]
        try:
            run(uv, "pip", "install", "--python", python, *options, "-r", lock.file)
        except LaunchError as error:
            absent[lock.file.name] = str(error)
    if len(absent) == len(locks):
        raise LaunchError("\n".join(f"{name}: {why}" for name, why in absent.items()))
    packages = {name for lock in locks for name in wanted(lock)}
    here = machine(locks[0].python, platform.machine())
    there = {one.name for one in locked([lock.file for lock in locks if lock.file.name not in absent], here)}
    tell(f"importing what {len(packages)} packages brought")
    rows = json.loads(run(python, IMPORTER, *sorted(packages & there)))
    return Trial([Imported(*row) for row in rows], absent, there)
