"""The JSON file to send back, and the table that is shown."""

import datetime
import importlib
import json
import math
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ascend_quant import __version__
from npu_smoke.checks import FACT, IN_SHORT, MISSING, NO, PROVED, REFUTED, UNKNOWN

SCHEMA = 2
ROOT = Path(__file__).parents[2]
VERDICTS = (PROVED, REFUTED, MISSING, FACT)


def file_name() -> str:
    """Of this host and day; the host's name is in the name only, which the sender may change."""
    return f"npu-smoke-{platform.node().partition('.')[0] or 'host'}-{datetime.date.today():%Y%m%d}.json"


def head(options: dict[str, Any]) -> dict[str, Any]:
    """What the file begins with."""
    return {
        "schema": SCHEMA,
        "project": {"version": __version__, "commit": _commit()},
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "options": options,
    }


def document(begin: dict[str, Any], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the file holds."""
    counts = {verdict: sum(one["verdict"] == verdict for one in results) for verdict in VERDICTS}
    bad = [one["name"] for one in results if is_bad(one)]
    return {**begin, "summary": {**counts, "needed and failed": bad}, "checks": list(results)}


def write(file: Path, content: dict[str, Any]) -> None:
    """JSON with a line for each check, in the order in which they were carried out."""
    head, checks = {key: value for key, value in content.items() if key != "checks"}, content["checks"]
    begin = json.dumps(_finite(head), indent=1, allow_nan=False).removesuffix("\n}")
    lines = ",\n  ".join(json.dumps(_finite(one), allow_nan=False) for one in checks)
    file.write_text(f'{begin},\n "checks": [\n  {lines}\n ]\n}}\n')


def is_bad(result: dict[str, Any]) -> bool:
    """Whether our kernels are wrong on this device, or nobody could see whether they are, as it stopped working."""
    not_tried = result["answer"] == UNKNOWN and result["reason"].startswith("not tried: the device")
    return result["needed"] and (result["answer"] == NO or not_tried)


def show(content: dict[str, Any], file: Path) -> None:
    """The table, what is refuted, missing or answered with no and why, and what to do with the file."""
    rows = [
        (one["name"], verdict(one), f"{one['seconds']:.1f}", str(one["numbers"].get(IN_SHORT, "")))
        for one in content["checks"]
    ]
    _table(("check", "verdict", "s", "in short"), rows)
    for one in content["checks"]:
        if one["verdict"] == REFUTED:
            print(f'{one["name"]}: refutes "{one["claim"]["sentence"]}" ({one["claim"]["page"]})')
        if one["reason"]:
            print(f"{one['name']}: {verdict(one)}: {one['reason'].splitlines()[0][:300]}")
    summary = content["summary"]
    counts = ", ".join(f"{summary[name]} {name}" for name in VERDICTS)
    print(f"\n{counts}; {len(summary['needed and failed'])} must hold for right results, and do not")
    print(f"Please send {file} back.")


def verdict(result: dict[str, Any]) -> str:
    """The verdict, and of a fact whether the answer is no."""
    return "fact: no" if result["verdict"] == FACT and result["answer"] == NO else result["verdict"]


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    try:
        console, tables, markup = (importlib.import_module(f"rich.{part}") for part in ("console", "table", "markup"))
    except ImportError:  # a user's environment need not have it
        widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
        for row in (header, *rows):
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    colours = {PROVED: "green", REFUTED: "bold red", MISSING: "yellow", FACT: "default", "fact: no": "cyan"}
    table = tables.Table(*header)
    for name, result, *others in rows:
        table.add_row(name, f"[{colours[result]}]{result}[/]", *map(markup.escape, others))
    console.Console().print(table)


def _commit() -> str | None:
    """Of this checkout, with a + if files differ from it; None where git does not say."""
    try:
        asked = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _finite(value: Any) -> Any:
    """The value with NaN and Inf as text, which JSON has not, and no more digits than are worth reading."""
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
