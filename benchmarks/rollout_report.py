"""Rollouts as tables and as JSON: tokens a second, their ratio to BF16 of the same run; where a step's time goes.

python -m benchmarks.rollout_report FILE.json: the tables of an earlier run, in Markdown.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.models import get_model
from benchmarks.report import in_words, write_run
from benchmarks.tasks import Outcome, Rollouts, Task

PLAIN, OURS, THEIRS = "bf16", "int8-ours", "int8-vllm"
LEAST = {  # int8-ours / bf16, by batch: the bars of the issue
    "qwen2.5-7b": {64: 1.40, 256: 1.40},
    "qwen2.5-32b": {64: 1.65, 256: 1.60},
    "qwen3-30b-a3b": {64: 1.50, 256: 1.50},
}


@dataclass(frozen=True)
class Row:
    """One scheme's speed.

    Attributes:
        rates: tokens a second, one an engine.
        ratio: of the medians, to BF16 in the same run; None without BF16.
        least, met: the bar, and whether it is met; None where there is none, or the model is not whole.
    """

    model: str
    batch: int
    scheme: str
    rates: tuple[float, ...]
    ratio: float | None
    least: float | None
    met: bool | None

    @property
    def rate(self) -> float:
        """Tokens a second, the median."""
        return median(self.rates)

    @property
    def spread(self) -> float:
        """(highest - lowest) / median."""
        return (max(self.rates) - min(self.rates)) / self.rate


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """Model by model, batch by batch."""
    rates: dict[tuple, list[float]] = {}
    for outcome in outcomes:
        for batch, seconds in (outcome.result or {}).get("seconds", {}).items():
            tokens = int(batch) * outcome.task.rollouts.answer
            rates.setdefault((outcome.task.model, int(batch), outcome.task.variant), []).append(tokens / seconds)
    judged = all(o.task.device == "cuda" and o.task.layers in (None, get_model(o.task.model).layers) for o in outcomes)
    return [_row(key, rates, judged) for key in sorted(rates, key=lambda key: key[:2])]


def _row(key: tuple, rates: dict[tuple, list[float]], judged: bool) -> Row:
    model, batch, scheme = key
    middle = {name: median(taken) for (*where, name), taken in rates.items() if tuple(where) == (model, batch)}
    ratio = middle[scheme] / middle[PLAIN] if PLAIN in middle else None
    least = LEAST.get(model, {}).get(batch) if scheme == OURS else None
    met = None
    if least is not None and ratio is not None and judged:
        met = ratio >= least and middle[OURS] >= middle.get(THEIRS, 0.0)
    return Row(model, batch, scheme, tuple(rates[key]), ratio, least, met)


@dataclass(frozen=True)
class Part:
    """One operation's share of a decode step.

    Attributes:
        us: microseconds a step; floor_us: the least that this GPU needs, None where nothing is moved.
        count: kernels a step.
    """

    model: str
    batch: int
    scheme: str
    name: str
    us: float
    count: float
    floor_us: float | None


def parts_of(outcomes: Sequence[Outcome]) -> list[Part]:
    """Of every traced step; "gaps" is what the GPU waits, "step" the whole by the clock."""
    return [
        Part(o.task.model, int(batch), o.task.variant, **part)
        for o in outcomes
        for batch, traced in (o.result or {}).get("traces", {}).items()
        for part in traced["parts"]
    ]


def faults_of(outcomes: Sequence[Outcome]) -> list[str]:
    """What failed: whole engines, or their traces."""
    failed = [outcome.error for outcome in outcomes if outcome.result is None]
    return failed + [fault for outcome in outcomes for fault in (outcome.result or {}).get("faults", [])]


def write_json(path: Path, device: str, outcomes: Sequence[Outcome]) -> None:
    """Everything, every sample included; whole or not at all."""
    write_rows(path, device, rows_of(outcomes), outcomes)


def write_rows(path: Path, device: str, rows: Sequence[Any], outcomes: Sequence[Outcome]) -> None:
    """The same with these rows, which have a rate and a spread."""
    content = {
        "rows": [{**asdict(row), "rate": row.rate, "spread": row.spread} for row in rows],
        "faults": faults_of(outcomes),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    write_run(path, "benchmarks.rollout", device, content)


def show(outcomes: Sequence[Outcome], out: Console) -> None:
    """The figures, and last what is wrong."""
    rows = rows_of(outcomes)
    show_tables([*([_speeds(rows)] if rows else []), *steps_tables(parts_of(outcomes))], outcomes, out)


def show_tables(tables: Sequence[Table], outcomes: Sequence[Outcome], out: Console) -> None:
    """These, and last what is wrong."""
    for table in tables:
        out.print(table)
    for fault in faults_of(outcomes):
        out.print(f"[red]wrong:[/red] {escape(fault)}", soft_wrap=True)


def _speeds(rows: Sequence[Row]) -> Table:
    table = Table(title="Rollouts: tokens a second, medians")
    for heading in ("model", "batch", "scheme"):
        table.add_column(heading)
    for heading in ("tokens/s", "spread", "of bf16", "bar", ""):
        table.add_column(heading, justify="right")
    for row in rows:
        ratio, least = (f"{number:.2f}" if number else "-" for number in (row.ratio, row.least))
        words = in_words(row.met) if row.least else ""
        figures = f"{row.rate:.0f}", f"{100 * row.spread:.1f} %", ratio, least, words
        table.add_row(row.model, str(row.batch), row.scheme, *figures)
    return table


def steps_tables(parts: Sequence[Part]) -> Iterator[Table]:
    """A table for each model and batch, a column a scheme."""
    for model, batch in dict.fromkeys((part.model, part.batch) for part in parts):
        these = [part for part in parts if (part.model, part.batch) == (model, batch)]
        schemes = list(dict.fromkeys(part.scheme for part in these))
        table = Table(title=f"{model}, batch {batch}: a decode step, microseconds (kernels; times the floor)")
        table.add_column("operation")
        for scheme in schemes:
            table.add_column(scheme, justify="right")
        found = {(part.name, part.scheme): part for part in these}
        for name in dict.fromkeys(part.name for part in these):
            table.add_row(name, *(_cell(found.get((name, scheme))) for scheme in schemes))
        yield table


def _cell(part: Part | None) -> str:
    if part is None:
        return "-"
    times = f"; {part.us / part.floor_us:.2f}" if part.floor_us else ""
    return f"{part.us:.0f} ({part.count:.0f}{times})"


def read(path: Path) -> list[Outcome]:
    """What `write_json` wrote."""
    return [
        Outcome(**{**outcome, "task": _task(outcome["task"])}) for outcome in json.loads(path.read_text())["outcomes"]
    ]


def _task(fields: dict) -> Task:
    asked = fields["rollouts"]
    rollouts = {**asked, "batches": tuple(asked["batches"]), "contexts": tuple(asked.get("contexts", ()))}
    return Task(**{**fields, "rollouts": Rollouts(**rollouts)})


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The tables for a note."""
    return in_markdown((_speeds(rows_of(outcomes)), *steps_tables(parts_of(outcomes))))


def in_markdown(tables: Sequence[Table]) -> str:
    """Tables as Markdown has them, each under its title."""
    out = Console(file=StringIO(), width=400)
    for table in tables:
        table.box, title, table.title = box.MARKDOWN, table.title, None
        out.print(f"\n### {title}\n")
        out.print(table)
    return "\n".join(line.strip() for line in out.file.getvalue().splitlines()).strip()


if __name__ == "__main__":
    print(markdown(read(Path(sys.argv[1]))))
