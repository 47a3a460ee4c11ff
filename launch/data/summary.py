"""What a preparation has made: files, rows, and what was left out; and how it tells of its progress."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

Progress = Callable[[str, int, int | None], None]  # what is done, how much of it, of how much if that is known


def silent(what: str, done: int, total: int | None) -> None:
    """Tell nobody."""


@dataclass
class Summary:
    """What was made.

    Attributes:
        rows: by file.
        notes: what a user should know of them, a line each.
    """

    rows: dict[Path, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people."""
        return [*(f"{file}: {rows} rows" for file, rows in self.rows.items()), *self.notes]
