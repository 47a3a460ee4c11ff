"""The block that FlashRL's `setup` leaves in `usercustomize.py`, which Python runs at every start, and its removal.

FlashRL appends a pair of lines; its own `cleanup` only puts "# " before them. Both are taken out, and so is
`import flash_rl` alone on a line. Anything else that names it is not FlashRL's, and stays.
"""

import re
from dataclasses import dataclass
from pathlib import Path

PAIR = ("try: import flash_rl", "except ImportError: pass")
ALONE = "import flash_rl"
KEYWORD, NAME = re.compile(r"import|\bfrom\b"), re.compile(r"\bflash_rl\b")


@dataclass(frozen=True)
class Cleaned:
    """A file without FlashRL's lines.

    Attributes:
        text: what is left.
        removed: how many lines were taken out.
        left: (line number from 1, line) of each that still imports flash_rl.
    """

    text: str
    removed: int
    left: tuple[tuple[int, str], ...]


def clean(text: str) -> Cleaned:
    """Take FlashRL's lines out of `text`; all others stay byte for byte."""
    lines = text.splitlines(keepends=True)
    kept, left, at = [], [], 0
    while at < len(lines):
        if count := length_at(lines, at):
            at += count
            continue
        if imports(lines[at]):
            left.append((at + 1, lines[at].rstrip("\r\n")))
        kept.append(lines[at])
        at += 1
    return Cleaned("".join(kept), len(lines) - len(kept), tuple(left))


def imports(line: str) -> bool:
    """Return whether it names flash_rl behind a word that imports: `import os, flash_rl`, `__import__("flash_rl")`."""
    code = line.partition("#")[0]
    keyword = KEYWORD.search(code)
    return keyword is not None and NAME.search(code, keyword.end()) is not None


def length_at(lines: list[str], at: int) -> int:
    """Return how many of the lines from `at` on are FlashRL's: 2, 1 or 0."""
    here = [line.rstrip() for line in lines[at : at + 2]]
    for mark in ("", "# "):
        if tuple(here) == (mark + PAIR[0], mark + PAIR[1]):
            return 2
        if here[0] == mark + ALONE:
            return 1
    return 0


def default_path() -> Path:
    """The file that FlashRL's `setup` writes to, in the environment of the running interpreter."""
    import site

    return Path(site.getsitepackages()[0]) / "usercustomize.py"
