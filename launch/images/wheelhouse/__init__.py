"""`run.sh images wheelhouse`: a folder that a host installs a stack from, with neither containers nor a network.

install.sh in it needs Python alone. The files of the stack's locks are fetched by pip, which checks their hashes; what
cannot be had is told, the rest is fetched. Which files fit a machine that is not this one is said in the words of pip.
What a stack builds from commits comes as a checkout of that one commit, in an archive.
"""

import platform
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.errors import LaunchError
from launch.images.archive import sha256
from launch.images.build import git
from launch.images.lock.packages import Entry, locked, machine, unlocked
from launch.images.lock.refresh import fetch
from launch.images.targets import LOCKS, Target
from launch.root import ROOT
from launch.stacks import Source

HERE = Path(__file__).parent
UV_LOCK = LOCKS / "uv.txt"
SUMS = "SHA256SUMS"
Tell = Callable[[str, int, int], None]  # what is done, how much of it, and of how much
AT_ONCE = 12  # packages: a start of pip costs a second
OLDEST = 5  # glibc 2.5, of manylinux1
OLD_NAMES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
WRITTEN = re.compile(r"(x86_64|aarch64)-manylinux_2_(\d+)")


@dataclass(frozen=True)
class Missing:
    """What is not in a bundle, and why."""

    what: str
    why: str


def bundle(target: Target, folder: Path, platform: str, tell: Tell) -> list[Missing]:
    """Fill the folder; returns what cannot be had from here.

    Raises:
        LaunchError: the stack has no lock, the folder has something in it or cannot be made, or this is no checkout.
    """
    if not target.locks:
        raise LaunchError(f"{target.stack} has no lock yet: python -m launch images lock {target.stack}")
    must_be_new(folder)
    there = machine(target.pins.python, architecture(platform))
    options = pip_options(platform, target.pins.python)
    for name in ("wheels", "ours", "sources", "bin"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    missing = add_uv(folder, there, options)
    lists = {"lock.txt": locked(target.locks, there), "sdists.txt": locked(target.sdists, there)}
    wanted = [one for entries in lists.values() for one in entries]
    count = len(wanted)
    missing += download(wanted, folder / "wheels", options, lambda done: tell("packages, by their hashes", done, count))
    for name, entries in lists.items():
        (folder / name).write_text("".join(f"{one}\n" for one in entries))
    unpinned = unlocked(target.pins, target.lists, architecture(platform))
    missing += [Missing(one, "no lock has it") for one in unpinned]
    missing += add_sources(target, folder, tell)
    tell("the wheel of this project", 0, 1)
    add_project(folder)
    tell("the wheel of this project", 1, 1)
    write_texts(target, folder, platform, missing)
    write_sums(folder, tell)
    return missing


def must_be_new(folder: Path) -> None:
    """Make the folder, which may be there if it is empty.

    Raises:
        LaunchError: something else is there, or it cannot be made.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LaunchError(f"--to {folder}: something is there already: name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"--to {folder}: cannot be made: {error.strerror}: name another folder") from error


def add_uv(folder: Path, there: Mapping[str, str], options: list[str]) -> list[Missing]:
    """uv for the host, out of its wheel: it is one program, which needs nothing. And what it builds packages with."""
    if missing := download(locked([UV_LOCK], there), folder / "wheels", options, lambda done: None):
        return missing
    (wheel,) = (folder / "wheels").glob("uv-*.whl")
    with zipfile.ZipFile(wheel) as content:
        (name,) = [name for name in content.namelist() if name.endswith(".data/scripts/uv")]
        (folder / "bin" / "uv").write_bytes(content.read(name))
    (folder / "bin" / "uv").chmod(0o755)
    wheel.unlink()
    return []


def add_sources(target: Target, folder: Path, tell: Tell) -> list[Missing]:
    """What is built from commits, in the order in which it is installed."""
    found, lines = [], []
    for done, (name, source) in enumerate(target.pins.sources.items()):
        tell("sources, by their commits", done, len(target.pins.sources))
        found.append(pack(name, source, folder / "sources"))
        lines.append(f"{name} {source.commit} {target.pins.packages.get(name, '-')}\n")
    (folder / "sources" / "list.txt").write_text("".join(lines))
    return [one for one in found if one]


def add_project(folder: Path) -> None:
    """This project: its files, for recipes, inventories and run.sh, and its wheel; both of the commit."""
    export(ROOT, folder / "project")
    with tempfile.TemporaryDirectory() as scratch:
        export(ROOT, Path(scratch))  # a build leaves files in its folder
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        command += ["--disable-pip-version-check", "--wheel-dir", str(folder / "ours"), scratch]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise LaunchError(f"the wheel of this project could not be built: {done.stderr.strip().splitlines()[-1]}")


def write_texts(target: Target, folder: Path, platform: str, missing: list[Missing]) -> None:
    """install.sh and what it reads, and a text for people."""
    variables = dict(target.pins.arguments)
    if target.chip:
        variables["SOC_VERSION"] = target.pins.soc[target.chip]
    values = {"TARGET": target.name, "PYTHON_VERSION": target.pins.python, "PLATFORM": platform}
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    (folder / "bundle.env").write_text("\n".join(lines) + "\n")
    (folder / "install.sh").write_text((HERE / "install.sh").read_text())
    (folder / "install.sh").chmod(0o755)
    gaps = "".join(f"- {one.what}: {one.why}\n" for one in missing)
    text = (HERE / "README.md").read_text().format(**values)
    (folder / "README.md").write_text(f"{text}\n## Missing\n{gaps}" if gaps else text)
    (folder / "missing.txt").write_text("".join(f"{one.what}\n" for one in missing))


def write_sums(folder: Path, tell: Tell) -> None:
    """The SHA-256 of every file, as sha256sum reads them."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != SUMS)
    lines = []
    for done, file in enumerate(files, start=1):
        lines.append(f"{sha256(file, lambda *_: None)}  {file.relative_to(folder)}\n")
        tell("counting sha256", done, len(files))
    (folder / SUMS).write_text("".join(lines))


def download(
    wanted: Sequence[Entry], folder: Path, options: Sequence[str], tell: Callable[[int], None]
) -> list[Missing]:
    """Fetch files into a folder; returns those that cannot be had.

    Args:
        options: pip's, for another machine.
        tell: hears how many packages are done.
    """
    missing = []
    for start in range(0, len(wanted), AT_ONCE):
        batch = wanted[start : start + AT_ONCE]
        if pip_download(batch, folder, options) is not None:
            alone = [(one, pip_download([one], folder, options)) for one in batch]
            missing += [Missing(f"{one.name}=={one.version}", why) for one, why in alone if why is not None]
        tell(start + len(batch))
    return missing


def pip_download(wanted: Sequence[Entry], folder: Path, options: Sequence[str]) -> str | None:
    """Fetch some at once; why that failed, or None."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lock:
        lock.write("".join(f"{one}\n" for one in wanted))
        lock.flush()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
        command += ["--no-deps", "--require-hashes", "--dest", str(folder), *options, "-r", lock.name]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if not done.returncode:
        return None
    said = [line for line in done.stderr.splitlines() if line.lower().startswith("error: ")]
    return said[-1][len("error: ") :] if said else (done.stderr.strip() or "pip gave no reason").splitlines()[-1]


def pack(name: str, source: Source, folder: Path) -> Missing | None:
    """Write NAME.tar.gz: the commit, its submodules, what its build would fetch; why that could not be, or None."""
    with tempfile.TemporaryDirectory() as scratch:
        checkout = Path(scratch) / name
        checkout.mkdir()
        try:
            git(checkout, "init", "--quiet")
            git(checkout, "fetch", "--quiet", "--depth", "1", source.repository, source.commit)
            git(checkout, "checkout", "--quiet", source.commit)
            git(checkout, "submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1")
        except LaunchError as error:
            return Missing(f"{name} at {source.repository}, commit {source.commit}", str(error))
        for place, file in source.files.items():
            try:
                fetch(file, checkout / place)
            except LaunchError as error:
                return Missing(f"{file.address}, for {name}", str(error))
        with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(checkout, name)
    return None


def export(root: Path, folder: Path) -> None:
    """This project's files as its commit has them, into a folder.

    Raises:
        LaunchError: this is no checkout.
    """
    git(root, "rev-parse", "HEAD")
    with (
        subprocess.Popen(["git", "-C", str(root), "archive", "HEAD"], stdout=subprocess.PIPE) as child,
        tarfile.open(fileobj=child.stdout, mode="r|") as archive,
    ):
        archive.extractall(folder, filter="data")
    if child.returncode:
        raise LaunchError(f"git archive in {root} ended with {child.returncode}")


def here() -> str:
    """This machine's processor, and the glibc of openEuler 22.03, which is older than Ubuntu 22.04's."""
    return f"{platform.machine()}-manylinux_2_34"


def architecture(name: str) -> str:
    """The processor in a platform's name.

    Raises:
        LaunchError: it is no such name.
    """
    return _parts(name)[0]


def pip_options(name: str, python: str) -> list[str]:
    """pip's options for the files of a platform and a Python.

    Args:
        name: as uv writes it: x86_64-manylinux_2_34.
    """
    processor, newest = _parts(name)
    tags = []
    for minor in range(newest, OLDEST - 1, -1):
        tags += [
            f"manylinux_2_{minor}_{processor}",
            *([f"{OLD_NAMES[minor]}_{processor}"] if minor in OLD_NAMES else []),
        ]
    tags.append(f"linux_{processor}")
    abi = f"cp{python.replace('.', '')}"
    return [
        *(word for tag in tags for word in ("--platform", tag)),
        *("--python-version", python),
        *("--implementation", "cp"),
        *(word for one in (abi, "abi3", "none") for word in ("--abi", one)),
    ]


def _parts(name: str) -> tuple[str, int]:
    found = WRITTEN.fullmatch(name)
    if found is None:
        raise LaunchError(
            f"--python-platform {name}: write PROCESSOR-manylinux_2_N, as x86_64-manylinux_2_34 or aarch64-.."
        )
    return found[1], int(found[2])
