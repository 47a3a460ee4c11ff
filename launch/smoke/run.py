"""All parts one after the other; one that fails, however it fails, does not stop the others."""

import datetime
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch.smoke import parts
from launch.smoke.child import FAILED, NOT_APPLICABLE, OK, Result, Setting
from launch.software import CHIP_VARIABLE

SCHEMA = 1
GROUPS: tuple[tuple[tuple[str, ...], Callable[[Setting], list[Result]]], ...] = (
    (("manifest",), parts.manifest),
    (("doctor",), parts.doctor),
    (("operators",), parts.operators),
    (parts.NAMES, parts.engine),
    (("train",), parts.train),
)
NAMES = tuple(name for names, _ in GROUPS for name in names)
STYLES = {OK: "green", FAILED: "bold red", NOT_APPLICABLE: "yellow"}


def smoke(stack: str, devices: str, steps: int, wanted: Sequence[str], console: Console) -> dict[str, Any]:
    """Carry out the wanted parts (all for none), show the table, return what the JSON file holds."""
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    begun, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="aq-smoke-"))
    results = list(_results(Setting(stack, devices, folder, steps), wanted or NAMES, console))
    content = {
        "schema": SCHEMA,
        "ok": all(one.status != FAILED for one in results),
        "started": started,
        "seconds": round(time.monotonic() - begun, 1),
        "stack": stack,
        "chip": os.environ.get(CHIP_VARIABLE) or None,
        "parts": [finite(asdict(one)) for one in results],
    }
    show(results, console)
    if content["ok"]:
        shutil.rmtree(folder)
    else:
        console.print(f"logs: {folder}", soft_wrap=True)
    return content


def _results(setting: Setting, wanted: Sequence[str], console: Console) -> Iterator[Result]:
    for names, part in GROUPS:
        asked = [name for name in names if name in wanted]
        if not asked:
            continue
        begun = time.monotonic()
        with console.status(f"{' and '.join(asked)} .."):
            try:
                results = part(setting)
            except Exception as error:  # the part itself is wrong, which must not hide the others' results
                seconds, why = round(time.monotonic() - begun, 1), f"{type(error).__name__}: {error}"
                results = [Result(name, FAILED, seconds, reason=f"the part itself failed: {why}") for name in names]
        for one in results:
            if one.name in asked:
                console.print(f"{one.name}: {one.status}, {one.seconds:.1f} s", highlight=False)
                yield one


def show(results: Sequence[Result], console: Console) -> None:
    """The table, and below it what did not go well."""
    table = Table("part", "result", "s", "in short")
    for one in results:
        table.add_row(one.name, Text(one.status, STYLES[one.status]), f"{one.seconds:.1f}", Text(one.short))
    console.print(table)
    for one in results:
        if one.reason:
            console.print(f"{one.name}: {one.status}: {one.reason}", soft_wrap=True, markup=False, highlight=False)


def finite(value: Any) -> Any:
    """The value with NaN and Inf, which JSON has not, as text."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def as_text(content: dict[str, Any]) -> str:
    """The JSON file."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
