"""The block that FlashRL's `setup` appends to `usercustomize.py`, which Python runs at every start, and its removal.

FlashRL appends two lines; its own `cleanup` only comments them out. Both forms are removed, as is a line with just
`import flash_rl`. Other lines that name it were not written by FlashRL, and are kept.
"""

import re
from pathlib import Path
from typing import NamedTuple

END = r"[ \t]*(?:\r?\n|\Z)"
OWN = re.compile(
    rf"^(?P<mark>|# )(?:try: import flash_rl{END}(?P=mark)except ImportError: pass|import flash_rl){END}", re.MULTILINE
)
IMPORTS = re.compile(r"[^#]*(?:import|\bfrom\b)[^#]*\bflash_rl\b")


class Cleaned(NamedTuple):
    """A file without FlashRL's lines.

    Attributes:
        text: the remaining text.
        removed: number of removed blocks.
        left: (line number from 1, line) of each line of the original text that still imports flash_rl.
    """

    text: str
    removed: int
    left: tuple[tuple[int, str], ...]


def clean(text: str) -> Cleaned:
    """Remove FlashRL's lines from `text`; all others are unchanged."""
    kept, removed = OWN.subn("", text)
    blank = OWN.sub(lambda found: "\n" * found[0].count("\n"), text)  # keeps line numbers
    lines = enumerate(blank.split("\n"), start=1)
    return Cleaned(kept, removed, tuple((number, line.rstrip("\r")) for number, line in lines if IMPORTS.match(line)))


def default_path() -> Path:
    """Return the file to which FlashRL's `setup` writes in the running interpreter's environment."""
    import site

    return Path(site.getsitepackages()[0]) / "usercustomize.py"
