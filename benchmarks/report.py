"""A run as JSON for machines and as tables for people; and whether its checks hold."""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import graphs
from benchmarks.bars import Bar, bars_of
from benchmarks.machine import hardware, versions
from benchmarks.rows import Row, copy_rate, rows_of
from benchmarks.tasks import Outcome

FORMAT = 1
WIDTH = 150  # of a table that no terminal limits
MIB = 1 << 20


def console() -> Console:
    """Where tables go."""
    return Console() if sys.stdout.isatty() else Console(width=WIDTH)


def faults_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Everything that is wrong: tasks that failed, bytes that differ, answers that differ."""
    faults = []
    for outcome in outcomes:
        title = outcome.task.title()
        faults += [outcome.error] if outcome.result is None else []
        faults += [f"{title}: {fault}" for fault in (outcome.result or {}).get("faults", ())]
    for other, reference in _pairs(outcomes):
        faults += [f"{other.task.title()}: {fault}" for fault in graphs.differences(reference.result, other.result)]
    return faults


def _pairs(outcomes: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """Each engine with captured graphs, and the one without that it is compared with."""
    graphs_alone = [outcome for outcome in outcomes if outcome.task.part == "graphs" and outcome.result]
    done = {(o.task.model, o.task.scheme, o.task.variant): o for o in graphs_alone}
    references = {key: (*key[:2], graphs.REFERENCES.get(key[2])) for key in done}
    return [(done[key], done[other]) for key, other in references.items() if other in done]


def write_json(path: Path, device: str, outcomes: Sequence[Outcome]) -> None:
    """Everything, every sample included."""
    content = {
        "copy_bytes_per_second": copy_rate(outcomes),
        "rows": [{**asdict(row), "bytes_per_second": row.rate} for row in rows_of(outcomes)],
        "bars": [asdict(bar) for bar in bars_of(outcomes)],
        "faults": faults_of(outcomes),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    write_run(path, "benchmarks.refit", device, content)


def write_run(path: Path, module: str, device: str, content: dict) -> None:
    """A run of `python -m module`: what it ran on, and its content; whole or not at all."""
    head = {
        "format": FORMAT,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": ["python", "-m", module, *sys.argv[1:]],
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("VLLM_USE_")},
        "hardware": hardware(device),
        "versions": versions(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps({**head, **content}, indent=1) + "\n")
    partial.replace(path)


def show(outcomes: Sequence[Outcome], out: Console) -> None:
    """The figures, the bars, and last what is wrong."""
    if rows := rows_of(outcomes):
        out.print(_figures(rows, copy_rate(outcomes)))
    for other, reference in _pairs(outcomes):
        far = graphs.largest_difference(reference.result, other.result)
        words = f"log-probabilities of first tokens within {far:.3f} of those of {reference.task.variant}"
        out.print(f"{other.task.title()}: {words}")
    for outcome in outcomes:
        for way, why in (outcome.result or {}).get("refused", {}).items():
            out.print(f"{outcome.task.title()}: {way} is refused: {escape(why)}", soft_wrap=True)
        _show_receipt(outcome, out)
    if bars := bars_of(outcomes):
        out.print(bars_table(bars))
    for fault in faults_of(outcomes):
        out.print(f"[red]wrong:[/red] {escape(fault)}", soft_wrap=True)


def _show_receipt(outcome: Outcome, out: Console) -> None:
    """The last refit's of an engine."""
    samples = (outcome.result or {}).get("samples", {}) if outcome.task.part == "engine" else {}
    receipts = [taken[-1]["receipt"] for taken in samples.values() if taken and "receipt" in taken[-1]]
    if receipts:
        out.print(f"{outcome.task.title()}: receipt {max(receipts, key=lambda r: r['number'])}", soft_wrap=True)


def _figures(rows: Sequence[Row], copied: float | None) -> Table:
    table = Table(title="Refits: medians of several rounds")
    for heading in ("model", "method"):
        table.add_column(heading)
    for heading in ("ms", "low - high", "host ms", "GB/s", "of a copy", "extra MiB"):
        table.add_column(heading, justify="right")
    for row in rows:
        spread = f"{row.ms['low']:.2f} - {row.ms['high']:.2f}"
        ratio = f"{row.rate / copied:.3f}" if copied else "-"
        extra = "-" if row.extra_bytes is None else f"{row.extra_bytes / MIB:.1f}"
        times = f"{row.ms['median']:.2f}", spread, f"{row.host_ms['median']:.2f}"
        table.add_row(row.model, row.method, *times, f"{row.rate / 1e9:.0f}", ratio, extra)
    return table


def bars_table(bars: Sequence[Bar]) -> Table:
    """What was measured beside each bar."""
    table = Table(title="The bars (judged on a GPU, with whole models)")
    for heading in ("what", "bar", "measured", ""):
        table.add_column(heading, justify="right" if heading in ("bar", "measured") else "left")
    for bar in bars:
        table.add_row(bar.text, bar.target, f"{bar.value:.3g}", in_words(bar.met))
    return table


def in_words(met: bool | None) -> str:
    """Whether a bar is met, in colour."""
    return {True: "[green]met[/green]", False: "[red]missed[/red]", None: "not judged"}[met]
