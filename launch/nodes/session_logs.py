"""Ray's own logs of this host, sent to the control host when the run ends: the end of each file, the newest first."""

from collections.abc import Iterator
from pathlib import Path

LARGEST = 256 << 10  # bytes of a file, from its end
ALL = 16 << 20  # bytes of all files together


def session_logs(temp_dir: Path) -> Iterator[tuple[str, str]]:
    """Names, below Ray's log folder, and texts."""
    folder = temp_dir / "session_latest" / "logs"
    files = [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size] if folder.exists() else []
    left = ALL
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - LARGEST))
            text = opened.read(min(LARGEST, left))
        left -= len(text)
        yield str(file.relative_to(folder)), text.decode(errors="replace")
        if left <= 0:
            return
