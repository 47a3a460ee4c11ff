"""The logs of all hosts in one folder: logs/driver.log, logs/<host>.log, and Ray's own in logs/<host>/ray/."""

from collections import Counter
from pathlib import Path, PurePosixPath
from typing import TextIO

DRIVER = "driver"


class Logs:
    """The folder `logs` of a run; restarts append."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "logs"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.files: dict[str, TextIO] = {}
        self.lines: Counter[str] = Counter()  # written so far, by name

    def write(self, name: str, line: str) -> None:
        """A line of `driver` or of a host."""
        if name not in self.files:
            self.files[name] = (self.folder / f"{plain(name)}.log").open("a", buffering=1)
        self.files[name].write(line + "\n")
        self.lines[name] += 1

    def file(self, host: str, name: str, text: str) -> Path:
        """Keep one of Ray's own logs of a host; its name came from there and must stay below the folder."""
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts:
            raise ValueError(f"{host} sent a log file with the name {name!r}")
        path = self.folder / plain(host) / "ray" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def close(self) -> None:
        """Close all files."""
        for file in self.files.values():
            file.close()


def plain(host: str) -> str:
    """An address as a file name: IPv6 has colons and may have a percent sign."""
    return host.replace(":", "_").replace("%", "_").replace("/", "_")
