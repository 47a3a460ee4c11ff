"""The files of a lock, fetched by pip, which checks their hashes; what cannot be had is told, the rest is fetched."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.images.lock.text import Entry

AT_ONCE = 12  # packages: a start of pip costs a second


@dataclass(frozen=True)
class Missing:
    """What is not in a bundle, and why."""

    what: str
    why: str


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
        if fetch(batch, folder, options) is not None:
            alone = [(one, fetch([one], folder, options)) for one in batch]
            missing += [Missing(f"{one.name}=={one.version}", why) for one, why in alone if why is not None]
        tell(start + len(batch))
    return missing


def fetch(wanted: Sequence[Entry], folder: Path, options: Sequence[str]) -> str | None:
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
