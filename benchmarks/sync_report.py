"""Weight syncs as tables, as JSON and as a picture: where the time goes, stage by stage, and the bytes on each hop.

python -m benchmarks.sync_report FILE.json [PICTURE.png]: those of an earlier run, with every stamped call.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.bars import Bar, at_most, judged_bars
from benchmarks.machine import hardware
from benchmarks.report import bars_table, console, write_run
from benchmarks.sync_measured import PLAIN, SETTLED
from benchmarks.sync_picture import draw
from benchmarks.sync_run import WAYS, Sync
from benchmarks.sync_stages import ENGINE_STAGES, TRAINER_STAGES
from benchmarks.tasks import Outcome
from benchmarks.train_run import TIMED, medians_of_refits

STAGES = {"trainer": TRAINER_STAGES, "engine": ENGINE_STAGES}
SPREAD = "of medians"  # what the stages' medians leave of the whole's, or are more than it
MOST_SECONDS, MOST_OF_PLAIN = 0.35, 0.4  # the bars, for the whole JUDGED
JUDGED, EXPERTS, MOST_WITH_EXPERTS = "qwen2.5-7b", "qwen3-30b-a3b", 0.5  # and for as many layers of EXPERTS as fit


def medians(syncs: Sequence[dict], side: str) -> dict[str, float]:
    """Of each stage, in milliseconds; with SPREAD they add up to the median of the whole."""
    known = [sync for sync in syncs if sync[side]]
    if not known:
        return {}
    found = {name: median(sync[side][name] for sync in known) for name in STAGES[side]}
    return found | {SPREAD: whole(known, side) - sum(found.values())}


def whole(syncs: Sequence[dict], side: str = "trainer") -> float:
    """The median of a side's whole, in milliseconds."""
    return median(sum(sync[side].values()) for sync in syncs if sync[side])


def row_of(outcome: Outcome) -> dict | None:
    """An arm's figures over its steady syncs; None where there are none."""
    steady = (outcome.result or {}).get("syncs", [])[SETTLED:]
    if not steady:
        return None
    steps = [line["data"] for line in outcome.result["steps"][SETTLED - 1 :]]
    logged = medians_of_refits(steps)
    if took := [data[TIMED] for data in steps if TIMED in data]:
        logged[TIMED] = median(took)
    return {
        "model": outcome.task.shape,
        "way": outcome.task.way,
        "syncs": len(steady),
        "ms": whole(steady),
        "trainer": medians(steady, "trainer"),
        "engine": medians(steady, "engine"),
        "bytes": {name: median(sync["bytes"][name] for sync in steady) for name in steady[0]["bytes"]},
        "logged": logged,
    }


def rows_of(outcomes: Sequence[Outcome]) -> list[dict]:
    """One of each arm that was measured."""
    return [row for outcome in outcomes if (row := row_of(outcome)) is not None]


def bars_of(rows: Sequence[dict], judged: bool) -> list[Bar]:
    """The issue's, of INT8 rollouts on GPUs; of other models the figures are shown, and not judged."""
    plain = next((row for row in rows if row["way"] == PLAIN), None)
    found: list[Bar] = []
    for row in rows:
        if WAYS[row["way"]] != "int8":
            continue
        model, title, experts = row["model"], f"{row['model']}, {row['way']}", row["model"].startswith(EXPERTS)
        bars = [] if experts else [at_most(f"{title}: update_weights, s", MOST_SECONDS, row["ms"] / 1e3)]
        if plain is not None:
            most = MOST_WITH_EXPERTS if experts else MOST_OF_PLAIN
            bars.append(at_most(f"{title}: of verl's own in BF16", most, row["ms"] / plain["ms"]))
        found += judged_bars(bars, judged and (experts or model == JUDGED))
    return found


def faults_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Arms that failed, and what their stamps lack."""
    failed = [outcome.error for outcome in outcomes if outcome.result is None]
    return failed + [fault for outcome in outcomes for fault in (outcome.result or {}).get("faults", ())]


def write_json(path: Path, device: str, outcomes: Sequence[Outcome]) -> None:
    """Each sync's stages, what verl logged, and the calls of the one that is drawn."""
    rows = rows_of(outcomes)
    content = {
        "rows": rows,
        "bars": [asdict(bar) for bar in bars_of(rows, bool(hardware(device).get("gpus")))],
        "faults": faults_of(outcomes),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    write_run(path, "benchmarks.sync", device, content)


def show(outcomes: Sequence[Outcome], gpus: Sequence[str], out: Console) -> None:
    """The stages of all arms beside each other, the bytes, the bars, and last what is wrong."""
    rows = rows_of(outcomes)
    if rows:
        counts = ", ".join(f"{row['syncs']} with {row['way']}" for row in rows)
        out.print(
            f"Stages of a weight sync of {rows[0]['model']}, in ms: medians of {counts}, the first {SETTLED} left out"
        )
        out.print(_stages(rows, "trainer", "trainer (slowest rank)"))
        out.print(_stages(rows, "engine", "its engine's worker"))
        out.print(_bytes(rows))
    if bars := bars_of(rows, bool(gpus)):
        out.print(bars_table(bars))
    for fault in faults_of(outcomes):
        out.print(f"[red]wrong:[/red] {escape(fault)}", soft_wrap=True)


def _stages(rows: Sequence[dict], side: str, title: str) -> Table:
    table = Table(title=title)
    table.add_column("stage")
    for row in rows:
        table.add_column(row["way"], justify="right")
    for stage in (*STAGES[side], SPREAD):
        table.add_row(stage, *(f"{row[side][stage]:.1f}" if row[side] else "-" for row in rows))
    table.add_row("together", *(f"{sum(row[side].values()):.1f}" if row[side] else "-" for row in rows))
    return table


def _bytes(rows: Sequence[dict]) -> Table:
    table = Table(title="MB of a sync, on each hop of one rank")
    for heading in (
        "arm",
        "gathered from other ranks",
        "handed to the engine",
        "refit/bytes",
        "timing_s/update_weights",
    ):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for row in rows:
        hops = [f"{1e-6 * row['bytes'][name]:.1f}" for name in ("gathered", "handed over")]
        got, logged = (row["logged"].get(name) for name in ("refit/bytes", TIMED))
        said = "-" if got is None else f"{1e-6 * got:.1f}", "-" if logged is None else f"{1e3 * logged:.1f} ms"
        table.add_row(row["way"], *hops, *said)
    return table


def show_calls(outcomes: Sequence[Outcome], out: Console) -> None:
    """Every stamped call, those in it indented below."""
    for outcome in outcomes:
        calls = (outcome.result or {}).get("calls", [])
        if not calls:
            continue
        table = Table(title=f"{outcome.task.title()}: calls of a sync, medians")
        for heading in ("where", "call", "from ms", "ms", "calls"):
            table.add_column(heading, justify="left" if heading in ("where", "call") else "right")
        for one in calls:
            name, numbers = "  " * one["depth"] + one["call"], (f"{one['from_ms']:.1f}", f"{one['ms']:.2f}")
            table.add_row(one["lane"], name, *numbers, f"{one['count']:.0f}")
        out.print(table)


def read_run(path: Path) -> tuple[list[Outcome], dict]:
    """What `write_json` wrote: the outcomes, and the whole."""
    content = json.loads(path.read_text())
    tuples = ("changes", "overrides")
    arms = [{**one["task"], **{name: tuple(one["task"][name]) for name in tuples}} for one in content["outcomes"]]
    return [
        Outcome(**{**one, "task": Sync(**arm)}) for one, arm in zip(content["outcomes"], arms, strict=True)
    ], content


if __name__ == "__main__":
    earlier, run = read_run(Path(sys.argv[1]))
    described_gpus = run["hardware"].get("gpus", [])
    show(earlier, described_gpus, console())
    show_calls(earlier, console())
    if len(sys.argv) > 2:
        draw(earlier, described_gpus, Path(sys.argv[2]))
