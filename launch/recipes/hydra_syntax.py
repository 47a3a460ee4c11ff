"""Values as hydra reads them on a command line: KEY=VALUE. Its quotes are unlike JSON's: a backslash stays one."""

import re
from typing import Any

PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
WORDS = ("null", "true", "false", "nan", "inf")  # hydra's, in any case


def text(value: Any) -> str:
    """A value: a list, a string, a number, true, false or null.

    Raises:
        TypeError: another kind of value.
    """
    if isinstance(value, list):
        return f"[{','.join(map(text, value))}]"
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) and value.lower() not in WORDS else quoted(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if value == {}:
        return "{}"
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot stand on a command line")


def quoted(value: str) -> str:
    """In single quotes; backslashes count only before a quote, where hydra wants each of them twice."""
    inner = re.sub(r"(\\*)'", r"\1\1\\'", value)
    slashes = len(inner) - len(inner.rstrip("\\"))
    return f"'{inner}{slashes * chr(92)}'"
