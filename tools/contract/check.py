"""A check that a release still has all names that we use: the tables of contract.py, and all others in our sources."""

import ast
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ascend_quant.integrations.contract import Use, problem_of
from ascend_quant.integrations.vllm.contract import CONTRACT
from launch import ROOT, LaunchError
from tools.contract.sources import Sources, takes

OURS = ROOT / "ascend_quant"
OTHERS = "other names in our sources"  # many belong to other versions, and are probed at run time


@dataclass(frozen=True)
class Reading:
    """The result of checking one feature's names."""

    feature: str
    rows: int  # number of rows
    problems: tuple[str, ...]  # descriptions of what is missing


def read(what: str) -> tuple[str, list[Reading]]:
    """Check a release of the package index ("vllm==0.34.0", or "vllm" for the newest), or a folder with its files.

    Returns:
        What was checked ("vllm-0.34.0", or the folder), and the results.

    Raises:
        LaunchError: pip does not find the release, or it contains none of the known packages.
    """
    if Path(what).is_dir():
        return what, of_folder(Path(what))
    with tempfile.TemporaryDirectory(prefix="contract-") as folder:
        return fetch(what, Path(folder)), of_folder(Path(folder))


def fetch(requirement: str, to: Path) -> str:
    """Unpack the Python files of a release's wheel, without its requirements; return the wheel's "name-version"."""
    wheels = to / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(wheels)]
    if subprocess.run([*command, requirement], stdout=sys.stderr).returncode:
        raise LaunchError(
            f"pip finds no wheel of {requirement} for this machine; give a folder with the unpacked package"
        )
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(to, [name for name in packed.namelist() if name.endswith(".py")])
    return "-".join(wheel.name.split("-")[:2])


def of_folder(folder: Path) -> list[Reading]:
    """Check the package in a folder, feature by feature."""
    package = next((name for name in ("vllm", "verl", "vllm_ascend") if (folder / name).is_dir()), None)
    if package is None:
        raise LaunchError(f"{folder} contains none of vllm, verl and vllm_ascend")
    sources, table = Sources(folder), CONTRACT if package == "vllm" else {}
    told = {name for rows in table.values() for row in rows for name in row.names}
    others = tuple(Use((name,)) for name in sorted(used_in(OURS, package) - told))
    return [
        Reading(feature, len(rows), tuple(problem for row in rows if (problem := problem_of(row, sources.find, takes))))
        for feature, rows in {**table, OTHERS: others}.items()
    ]


def used_in(folder: Path, package: str) -> set[str]:
    """Return every name of a package that files below a folder import or use as a hook's target ("module:name")."""
    target = re.compile(rf"{package}(\.\w+)*:[\w.]+")
    found: set[str] = set()
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            found.update(imported(node, package))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and target.fullmatch(node.value):
                found.add(node.value)
    return found


def imported(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the names that a statement imports from a package."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == package)
    elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == package:
        yield from (f"{node.module}:{alias.name}" for alias in node.names)
