"""A folder that a host installs a stack from, without a network: install.sh in it needs Python alone."""

import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from launch.errors import LaunchError
from launch.images.archive import sha256
from launch.images.locked import locked, machine
from launch.images.targets import LOCKS, Target
from launch.images.wheelhouse import platforms
from launch.images.wheelhouse.download import Missing, download
from launch.images.wheelhouse.sources import export, pack
from launch.root import ROOT

HERE = Path(__file__).parent
UV_LOCK = LOCKS / "uv.txt"
SUMS = "SHA256SUMS"

Tell = Callable[[str, int, int], None]  # what is done, how much of it, and of how much


def bundle(target: Target, folder: Path, platform: str, tell: Tell) -> list[Missing]:
    """Fill the folder; returns what cannot be had from here.

    Raises:
        LaunchError: the stack has no lock, the folder has something in it, or this is no checkout.
    """
    if not target.locks:
        raise LaunchError(f"{target.stack} has no lock yet: python -m launch images lock {target.stack}")
    if folder.exists() and any(folder.iterdir()):
        raise LaunchError(f"--to {folder}: something is there already: name a new folder")
    there = machine(target.pins.python, platforms.architecture(platform))
    options = platforms.pip_options(platform, target.pins.python)
    for name in ("wheels", "ours", "sources", "bin"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    missing = add_uv(folder, there, options)
    lists = {"lock.txt": locked(target.locks, there), "sdists.txt": locked(target.sdists, there)}
    wanted = [one for entries in lists.values() for one in entries]
    count = len(wanted)
    missing += download(wanted, folder / "wheels", options, lambda done: tell("packages, by their hashes", done, count))
    for name, entries in lists.items():
        (folder / name).write_text("".join(f"{one}\n" for one in entries))
    missing += add_sources(target, folder, tell)
    tell("the wheel of this project", 0, 1)
    add_project(folder)
    tell("the wheel of this project", 1, 1)
    write_texts(target, folder, platform, missing)
    write_sums(folder, tell)
    return missing


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
