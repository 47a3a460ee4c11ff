"""The report of a smoke test: one result for each probe, in one JSON file to send back."""

import datetime
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
LONGEST, SHORT = 2000, 60  # characters: of a reason, and of the values in a line


@dataclass(frozen=True)
class Result:
    """The result of one probe."""

    name: str
    decides: str  # what the probe decides, in one sentence
    status: Status
    seconds: float = 0.0
    reason: str = ""  # why it failed, or why it does not apply and what to do; "" if it passed
    values: dict[str, Any] = field(default_factory=dict)  # observed values
    broke: bool = False  # whether it failed before it could judge: it raised an exception, or its process ended


def document(results: Sequence[Result], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the JSON file.

    Args:
        about: description of the run, with its time.
    """
    ok = all(one.status != FAILED for one in results)
    return {"schema": SCHEMA, "ok": ok, **about, "probes": [plain(asdict(one)) for one in results]}


def now() -> str:
    """Return the time in UTC, as the file has it."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def as_text(content: Mapping[str, Any]) -> str:
    """Return the text of the JSON file."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def show(one: Result, console: "Console") -> None:
    """Print a line for a probe's result, and one for its problem."""
    from rich.text import Text

    said = Text.assemble(f"{one.name}: ", (one.status, STYLES[one.status]), f", {one.seconds:.1f} s")
    console.print(said, Text(in_short(one.values), "dim"), soft_wrap=True)
    if one.reason:
        console.print(Text(f"  {one.reason}"), soft_wrap=True)


def in_short(values: Mapping[str, Any]) -> str:
    """Return the first values that are numbers or strings."""
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
    """Return a value for JSON; NaN and Inf become strings."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)


def without_traces(text: str) -> str:
    """Return the text without paths and this host's name, since the file is sent to others."""
    text = re.sub(r"(?<![\w.])(?:/[\w.+@-]+)+/(?=[\w.+@-])", "", text)
    host = socket.gethostname()
    return (text.replace(host, "(host)") if len(host) > 2 else text)[:LONGEST]
