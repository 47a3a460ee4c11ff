"""The vLLM releases that were run with this package, per device (seen.toml), and the status of a given version."""

import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("seen.toml")


@dataclass(frozen=True)
class Release:
    """Entry of seen.toml: a release, a device, and how it was run."""

    version: str
    device: str
    how: str
    of_it: str = ""
    lacks: list[str] = field(default_factory=list)


@cache
def releases(device: str) -> tuple[Release, ...]:
    """Return the releases of a device (cpu, cuda, npu), oldest first."""
    entries = [Release(**entry) for entry in tomllib.loads(FILE.read_text("utf-8"))["release"]]
    return tuple(sorted((one for one in entries if one.device == device), key=lambda one: numbers(one.version)))


def numbers(version: str) -> tuple[int, ...]:
    """Return the numeric parts of a version, up to a letter or a plus, for comparison."""
    return tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdigit())


def find(device: str, version: str) -> Release | None:
    """Find the entry of a version; patch releases count as their minor release."""
    return next((one for one in releases(device) if numbers(one.version)[:2] == numbers(version)[:2]), None)


def unknown(device: str, version: str) -> str | None:
    """Return one sentence for an engine of a version that was not run on a device; None for one that was."""
    found = find(device, version)
    if found is not None and found.how == "run":
        return None
    ran = ", ".join(one.version for one in releases(device) if one.how == "run")
    seen = "only its sources were checked" if found is not None else "its sources were not checked either"
    return f"vLLM {version} has not been run with ascend-quant on {device} (run: {ran}); {seen}"
