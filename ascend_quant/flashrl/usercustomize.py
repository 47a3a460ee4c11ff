"""The block that FlashRL's `setup` leaves in `usercustomize.py`, which Python runs at every start, and its removal.

FlashRL appends a pair of lines; its own `cleanup` only puts "# " before them. Both are removed, and so is `import
flash_rl` alone on a line. Any other line that names it was not written by FlashRL, and stays.
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
        text: what is left.
        removed: how many blocks were taken out.
        left: (line number from 1, line) of each that still imports flash_rl, in the text as it was.
    """

    text: str
    removed: int
    left: tuple[tuple[int, str], ...]


def clean(text: str) -> Cleaned:
    """Take FlashRL's lines out of `text`; all others stay byte for byte."""
    kept, removed = OWN.subn("", text)
    blank = OWN.sub(lambda found: "\n" * found[0].count("\n"), text)  # lines keep their numbers
    lines = enumerate(blank.split("\n"), start=1)
    return Cleaned(kept, removed, tuple((number, line.rstrip("\r")) for number, line in lines if IMPORTS.match(line)))


def default_path() -> Path:
    """The file that FlashRL's `setup` writes to, in the environment of the running interpreter."""
    import site

    return Path(site.getsitepackages()[0]) / "usercustomize.py"
