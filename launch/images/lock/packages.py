"""Python locks: NAME.in becomes NAME.txt, closed and hashed, for one Python on the machines that it names.

uv resolves once for each machine, and the results are merged. It reads metadata alone, and keeps the versions that it
finds in NAME.txt unless it is told to upgrade. uv itself is installed from uv.txt, by its hash. Further indexes are
given to it by its own variable, UV_INDEX.
"""

import os
import re
import subprocess
import sys
import tempfile
from functools import cached_property
from pathlib import Path

from launch.errors import LaunchError
from launch.images.locked import merged, parse
from launch.root import ROOT

LOCKS = ROOT / "docker" / "locks"
GLIBC = "manylinux_2_28"
UNTOUCHED = ("--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links")


class Lock:
    """A lock and what is wanted of it.

    The first comments of NAME.in are settings: `# python: 3.11`, `# torch: 2.13.0+cpu` where torch is installed before
    it, `# leave out: NAME ..` for what is named only for what it asks for. NAME.overrides.txt beside it changes what
    packages ask for; NAME.excludes.txt, or else excludes.txt, names what must not be in it. A NAME.torch.in lists
    packages of other indexes, without what they ask for.
    """

    machines = ("x86_64", "aarch64")

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
