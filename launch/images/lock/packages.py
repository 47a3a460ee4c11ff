"""Python locks: NAME.in becomes NAME.txt, closed and hashed, for one Python on the machines that it names; its entries.

uv resolves once for each machine, and the results are merged. It reads metadata alone, and keeps the versions that it
finds in NAME.txt unless it is told to upgrade. uv itself is installed from uv.txt, by its hash. Further indexes are
given to it by its own variable, UV_INDEX.

A lock has one entry a package, with the hashes of its files, and a marker where one platform alone has it. What is not
pinned keeps a target from being built: bases without a digest, packages of docker/stacks.yaml that no lock has.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from packaging.markers import Marker

from launch.errors import LaunchError
from launch.images.targets import LOCKS, Target
from launch.software import plain, public
from launch.stacks import Pins

GLIBC = "manylinux_2_28"
UNTOUCHED = ("--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links")
ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]+?))?\s*\\?$")
HASH = re.compile(r"^\s+--hash=(?P<hash>sha256:[0-9a-f]{64})\s*\\?$")
MACHINES = ("x86_64", "aarch64")


class Lock:
    """A lock and what is wanted of it.

    The first comments of NAME.in are settings: `# python: 3.11`, `# torch: 2.13.0+cpu` where torch is installed before
    it, `# leave out: NAME ..` for what is named only for what it asks for. NAME.overrides.txt beside it changes what
    packages ask for; NAME.excludes.txt, or else excludes.txt, names what must not be in it. A NAME.torch.in lists
    packages of other indexes, without what they ask for.
    """

    machines = MACHINES

    def __init__(self, name: str, folder: Path = LOCKS) -> None:
        self.name, self.folder = name, folder
        self.wanted, self.file = folder / f"{name}.in", folder / f"{name}.txt"

    @cached_property
    def settings(self) -> dict[str, str]:
        """The comments that are settings."""
        return dict(re.findall(r"^# (python|torch|leave out): (.+)$", self.wanted.read_text(), re.MULTILINE))

    @property
    def python(self) -> str:
        """Major and minor version."""
        return self.settings["python"]

    @property
    def header(self) -> str:
        """What the lock says first."""
        lines = [
            f"# Lock {self.name}, written by `python -m launch images lock` from {self.name}.in: do not edit.",
            f"# Linux, Python {self.python}. Hashes: every file of each release. Closed: installed with --no-deps.",
        ]
        if torch := self.settings.get("torch"):
            lines += [f"# torch: {torch}", "# is installed before it: its build for this stack is in another index."]
        return "".join(f"{line}\n" for line in lines) + "\n"

    def resolved(self, uv: Path, upgrade: bool) -> str:
        """What its file should say.

        Raises:
            LaunchError: no versions fit, or an index was not reached; what uv said.
        """
        with tempfile.TemporaryDirectory() as folder:
            out, found = Path(folder) / "lock.txt", {}
            if self.file.exists() and not upgrade:
                out.write_text(self.file.read_text())  # uv keeps the versions that it finds here
            for machine in self.machines:  # the second keeps those of the first
                of_machine = [f"--output-file={out}", f"--python-platform={machine}-{GLIBC}"]
                upgraded = ["--upgrade"] if upgrade and not found else []
                run(uv, "pip", "compile", "--quiet", self.wanted, *of_machine, *upgraded, *self._options(), *UNTOUCHED)
                found[machine] = parse(out.read_text())
        return self.header + "".join(f"{entry}\n" for entry in merged(found))

    def _options(self) -> list[str]:
        options = [f"--python-version={self.python}"]
        if self.name.endswith(".torch"):
            return [*options, "--no-deps"]
        overrides, excludes = (self.folder / f"{self.name}.{what}.txt" for what in ("overrides", "excludes"))
        if overrides.exists():
            options.append(f"--override={overrides}")
        options.append(f"--excludes={excludes if excludes.exists() else self.folder / 'excludes.txt'}")
        return options + [f"--no-emit-package={name}" for name in self.settings.get("leave out", "").split()]


def names(stack: str) -> list[str]:
    """The locks of a stack, those that others are made from first; or the one of that name, which no stack has.

    Raises:
        LaunchError: there are neither.
    """
    found = [name for name in (stack, f"{stack}-image", f"{stack}.torch") if (LOCKS / f"{name}.in").exists()]
    if not found:
        known = sorted(file.stem for file in LOCKS.glob("*.in") if not file.stem.endswith(("-image", ".torch")))
        raise LaunchError(f"no stack or lock {stack!r}; there are: {', '.join(known)}")
    return found


def install_uv(folder: Path) -> Path:
    """uv, of the version and hash in docker/locks/uv.txt, in an environment below the folder.

    Raises:
        LaunchError: pip did not get it.
    """
    run(sys.executable, "-m", "venv", folder / "uv")
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    run(folder / "uv/bin/python", "-m", "pip", "install", *options, "-r", LOCKS / "uv.txt")
    return folder / "uv/bin/uv"


def run(*command: object) -> str:
    """What a command prints. It cannot ask for a password.

    Raises:
        LaunchError: it failed, and what it said; or there is no such command.
    """
    words, alone = [str(word) for word in command], os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=alone)
    except FileNotFoundError as error:
        raise LaunchError(f"{words[0]} is not on PATH") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"it ended with {done.returncode}"
        raise LaunchError(f"{Path(words[0]).name}: {said}")
    return done.stdout


@dataclass(frozen=True)
class Entry:
    """A package of a lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    marker: str | None = None

    def __str__(self) -> str:
        marker = f" ; {self.marker}" if self.marker else ""
        return " \\\n".join([f"{self.name}=={self.version}{marker}", *(f"    --hash={one}" for one in self.hashes)])


def parse(text: str) -> list[Entry]:
    """The entries of a lock; a package has one for each of its versions.

    Raises:
        ValueError: a line that is neither an entry, nor a hash, nor a comment; an entry without a hash.
    """
    entries: list[Entry] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if entry := ENTRY.match(line):
            entries.append(Entry(entry["name"], entry["version"], (), entry["marker"]))
        elif (found := HASH.match(line)) and entries:
            entries[-1] = replace(entries[-1], hashes=(*entries[-1].hashes, found["hash"]))
        else:
            raise ValueError(f"line {number} is not of a lock: {line!r}")
    if bare := [entry.name for entry in entries if not entry.hashes]:
        raise ValueError(f"no hash for {', '.join(bare)}")
    return entries


def merged(platforms: Mapping[str, Iterable[Entry]]) -> list[Entry]:
    """One list for all platforms (x86_64, aarch64): what some lack gets a marker with the machines that have it."""
    machines: dict[Entry, list[str]] = {}
    for machine, entries in platforms.items():
        for entry in entries:
            machines.setdefault(entry, []).append(machine)
    together = [
        entry if len(having) == len(platforms) else replace(entry, marker=_marker(having))
        for entry, having in machines.items()
    ]
    return sorted(together, key=lambda entry: (entry.name, entry.version))


def _marker(machines: Iterable[str]) -> str:
    return " or ".join(f"platform_machine == '{machine}'" for machine in machines)


def locked(files: Iterable[Path], machine: Mapping[str, str]) -> list[Entry]:
    """The packages for a machine, without their conditions.

    Args:
        machine: what conditions ask about, by PEP 508's names: platform_machine, python_version, ..

    Raises:
        LaunchError: a file is no lock.
    """
    return [
        replace(entry, name=plain(entry.name), marker=None)
        for file in files
        for entry in entries(file)
        if entry.marker is None or Marker(entry.marker).evaluate(dict(machine))
    ]


def entries(file: Path) -> list[Entry]:
    """All entries of a lock.

    Raises:
        LaunchError: it is no lock.
    """
    try:
        return parse(file.read_text())
    except ValueError as error:
        raise LaunchError(f"{file}: {error}") from error


def machine(python: str, architecture: str) -> dict[str, str]:
    """What conditions ask about a Linux machine.

    Args:
        python: its version, all of it or major and minor.
    """
    return {
        "platform_machine": architecture,
        "python_full_version": python if python.count(".") > 1 else f"{python}.0",
        "python_version": ".".join(python.split(".")[:2]),
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
    }


def loose(target: Target, machines: Iterable[str] = MACHINES) -> list[str]:
    """A phrase for each thing that keeps it from being built; none where all is pinned.

    Raises:
        LaunchError: a file that should be a lock is none.
    """
    found = [] if "@" in target.base else [f"{target.base} has no digest"]
    if not target.locks:
        return [*found, "its packages have no lock"]
    lacking: dict[str, list[str]] = {}
    for one in machines:
        for package in unlocked(target.pins, target.lists, one):
            lacking.setdefault(package, []).append(one)
    return [*found, *(f"{package} is in no lock for {' and '.join(of)}" for package, of in lacking.items())]


def unlocked(pins: Pins, locks: Iterable[Path], architecture: str) -> list[str]:
    """The packages of stacks.yaml that a machine would install from no lock, with their versions."""
    have = {one.name: public(one.version) for one in locked(locks, machine(pins.python, architecture))}
    return [
        f"{name} {version}"
        for name, version in pins.packages.items()
        if name not in pins.sources and have.get(plain(name)) != version
    ]
