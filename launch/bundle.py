"""What a bug report needs, in one archive: this project's version, the packages, the doctor's findings, a run's logs.

Secrets are taken out by their names: of variables and settings, wherever `name=value` or `name: value` stands in a log,
by their values where this environment holds them, and logins of addresses. Names of hosts, paths and addresses stay.
"""

import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

from ascend_quant import __version__
from launch.cluster.record import FILE, Record
from launch.doctor.checking import Report
from launch.errors import LaunchError
from launch.images.build import git
from launch.images.manifest import REVISION_VARIABLE
from launch.root import IS_CHECKOUT, ROOT
from launch.software import own_packages, sources
from launch.stacks import STACK_VARIABLE
from launch.variables import FOLDERS, secret, without_secrets, without_secrets_in

LAST_BYTES = 1 << 20  # of a log: a failure is told at its end
MOST_FILES = 400
SHORTEST_SECRET = 8  # characters: a shorter value would be found in innocent words
PREFIXES = (
    *("ASCEND", "ATB_", "CUDA", "GLOO_", "HCCL", "HF_", "HYDRA_", "LD_", "MKL_", "NCCL", "NPU_", "OMP_", "PYTHON"),
    *("PYTORCH", "RAY_", "TASK_QUEUE", "TORCH", "TRANSFORMERS", "TRITON", "VERL", "VLLM"),
)


def write(file: Path, report: Report, record: Record | None, environment: Mapping[str, str]) -> list[str]:
    """Make the archive, for its owner alone; the names of what is in it.

    Args:
        record: of the run that the report is about.

    Raises:
        FileExistsError: there is such a file.
        OSError: it cannot be written.
    """
    with open(file, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as target:
        try:
            with tarfile.open(fileobj=target, mode="w:gz") as archive:
                names = list(_filled(archive, contents(report, record, environment), values_of_secrets(environment)))
            target.flush()
        except BaseException:  # a full disk, say: half an archive would be in the way of the next one
            file.unlink()
            raise
    return names


def _filled(archive: tarfile.TarFile, files: Iterator[tuple[str, str]], hidden: list[str]) -> Iterator[str]:
    for name, text in files:
        content = without_secrets_in(text, hidden).encode()
        entry = tarfile.TarInfo(f"ascend-quant/{name}")
        entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
        archive.addfile(entry, io.BytesIO(content))
        yield name


def contents(report: Report, record: Record | None, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The files by their names: what was looked at now, then what the run has left."""
    yield "about.json", json.dumps(about(environment), indent=1)
    yield "doctor.json", report.as_json()
    if record is not None:
        yield f"run/{FILE}", record.told.model_dump_json(indent=1, exclude_none=True)
        logs = sorted(path for path in (record.folder / "logs").rglob("*") if path.is_file() and not path.is_symlink())
        for path in logs[:MOST_FILES]:
            yield f"run/{path.relative_to(record.folder)}", end_of(path)


def about(environment: Mapping[str, str]) -> dict:
    """Which software this is, and the variables that it reads."""
    return {
        "version": __version__,
        "commit": environment.get(REVISION_VARIABLE) or commit(),
        "sources": sources(own_packages()),
        "stack": environment.get(STACK_VARIABLE),
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": dict(sorted((one.name, one.version) for one in distributions())),
        "variables": without_secrets({name: environment[name] for name in sorted(environment) if is_ours(name)}),
    }


def commit() -> str | None:
    """The checkout's commit, or why it is not known; None outside of a checkout."""
    try:
        return git(ROOT, "describe", "--always", "--dirty").strip() if IS_CHECKOUT else None
    except LaunchError as error:
        return str(error)


def is_ours(name: str) -> bool:
    """Whether this project or what it starts may read a variable of this name."""
    return name.startswith(PREFIXES) or name.lower().endswith("_proxy")


def end_of(path: Path) -> str:
    """The last bytes of a log, from the start of a line."""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - LAST_BYTES))
        content = file.read(LAST_BYTES)
    if length > LAST_BYTES:
        content = f"[the last {LAST_BYTES >> 20} MiB of {length} bytes]\n".encode() + content.partition(b"\n")[2]
    return content.decode(errors="replace")


def values_of_secrets(environment: Mapping[str, str]) -> list[str]:
    """The secrets that this environment holds, the longest first: one may be a part of another."""
    found = {
        value
        for name, value in environment.items()
        if name not in FOLDERS and len(value) >= SHORTEST_SECRET and secret(name, value)
    }
    return sorted(found, key=len, reverse=True)
