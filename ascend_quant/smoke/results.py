"""The report of a smoke test: one result for each probe, in one JSON file to send back."""

import json
import math
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = 3
Status = Literal["ok", "failed", "not applicable"]
OK: Status = "ok"
FAILED: Status = "failed"
NOT_APPLICABLE: Status = "not applicable"
STYLES: dict[Status, str] = {OK: "green", FAILED: "bold red", NOT_APPLICABLE: "yellow"}
LONGEST, SHORT = 2000, 60  # characters: of a reason, and of what a line shows of the values


@dataclass(frozen=True)
class Result:
    """The result of one probe."""

    name: str
    decides: str  # what is known once it has run, in one sentence
    status: Status
    seconds: float = 0.0
    reason: str = ""  # why it failed, or why it does not apply and what to do instead; "" where all is well
    values: dict[str, Any] = field(default_factory=dict)  # what was observed
    broke: bool = False  # whether it failed before it could judge: it raised an error, or its process ended


def document(results: Sequence[Result], about: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the JSON file.

    Args:
        about: what was tried, and when.
    """
    ok = all(one.status != FAILED for one in results)
    return {"schema": SCHEMA, "ok": ok, **about, "probes": [plain(asdict(one)) for one in results]}


def as_text(content: Mapping[str, Any]) -> str:
    """The JSON file."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def show(one: Result, console: "Console") -> None:
    """A line of what came of a probe, and one of what did not go well."""
    from rich.text import Text

    said = Text.assemble(f"{one.name}: ", (one.status, STYLES[one.status]), f", {one.seconds:.1f} s")
    console.print(said, Text(in_short(one.values), "dim"), soft_wrap=True)
    if one.reason:
        console.print(Text(f"  {one.reason}"), soft_wrap=True)


def in_short(values: Mapping[str, Any]) -> str:
    """The first of the values that are numbers or words."""
    shown = ""
    for name, value in values.items():
        if isinstance(value, (str, int, float)):
            more = f"{shown}, " if shown else ""
            text = f"{more}{name} {value:.3g}" if isinstance(value, float) else f"{more}{name} {value}"
            if len(text) > SHORT:
                break
            shown = text
    return shown


def plain(value: Any) -> Any:
    """The value as JSON has it: NaN and Inf as text."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)


def without_traces(text: str) -> str:
    """The text without folders and without this host's name: the file goes to strangers."""
    text = re.sub(r"(?<![\w.])(?:/[\w.+@-]+)+/(?=[\w.+@-])", "", text)
    host = socket.gethostname()
    return (text.replace(host, "(host)") if len(host) > 2 else text)[:LONGEST]
