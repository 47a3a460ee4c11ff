"""Decode steps by context, as a table and as JSON: tokens a second, times those of BF16 weights and cache of the run.

python -m benchmarks.decoding_report FILE.json: the tables of an earlier run, in Markdown.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.caches import OURS as OUR_CACHES
from benchmarks.models import get_model
from benchmarks.report import in_words
from benchmarks.rollout_report import OURS, PLAIN, Part, in_markdown, read, show_tables, steps_tables, write_rows
from benchmarks.tasks import Outcome

LEAST = {  # our INT8 weights with one of our caches / BF16 with BF16, by context and batch: the bars of the issue
    "qwen2.5-7b": {(8192, 64): 1.45, (8192, 160): 1.55, (30720, 32): 1.50},
    "qwen2.5-32b": {(8192, 24): 1.55},
    "qwen3-30b-a3b": {(8192, 64): 1.55},
}
LEAST_FITS = {"qwen2.5-7b": {8192: 2.0}, "qwen2.5-32b": {8192: 3.0}}  # sequences, times those of BF16 with BF16
LEAST_ATTENTION = 1.5  # times the least time of its bytes


@dataclass(frozen=True)
class Row:
    """One scheme with one cache, at one context and batch.

    Attributes:
        rates: tokens a second, one a round of each engine; none where the batch does not fit.
        ratio: of the medians, to BF16 weights and cache in the same run; None without these.
        fits: sequences of that context, the least of the engines; `more_fit`: times those of BF16 weights and cache.
        attention: its time over the least of its bytes, where it was traced.
        least, met: the bar of the ratio, and whether it and those of `more_fit` and `attention` are met.
    """

    model: str
    context: int
    batch: int
    scheme: str
    cache: str
    rates: tuple[float, ...]
    ratio: float | None
    fits: int
    more_fit: float | None
    attention: float | None
    least: float | None
    met: bool | None

    @property
    def rate(self) -> float | None:
        """Tokens a second, the median."""
        return median(self.rates) if self.rates else None

    @property
    def spread(self) -> float | None:
        """(highest - lowest) / median."""
        return (max(self.rates) - min(self.rates)) / median(self.rates) if self.rates else None


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """Model by model, context by context, batch by batch."""
    found: dict[tuple, list[dict]] = {}
    for outcome in outcomes:
        for one in (outcome.result or {}).get("decoding", []):
            place = outcome.task.model, one["context"], one["batch"]
            found.setdefault((place, outcome.task.variant, outcome.task.cache), []).append(one)
    whole = all(o.task.device == "cuda" and o.task.layers in (None, get_model(o.task.model).layers) for o in outcomes)
    return [_row(key, found, whole) for key in sorted(found, key=lambda key: key[0])]


def _row(key: tuple, found: dict[tuple, list[dict]], whole: bool) -> Row:
    (model, context, batch), scheme, cache = key
    rates, base = _rates(found[key]), _rates(found.get((key[0], PLAIN, "auto"), []))
    fits = min(one["fits"] for one in found[key])
    plain = [one["fits"] for one in found.get((key[0], PLAIN, "auto"), [])]
    ratio = median(rates) / median(base) if rates and base else None
    more = fits / min(plain) if plain and min(plain) else None
    attention = next((part for one in found[key] for part in _parts(one) if part["name"] == "attention"), None)
    times = attention["us"] / attention["floor_us"] if attention else None
    ours = scheme == OURS and cache in OUR_CACHES
    least = LEAST.get(model, {}).get((context, batch)) if ours else None
    met = None
    if ours and whole and (least is not None or context in LEAST_FITS.get(model, {})):
        met = least is None or (ratio is not None and ratio >= least)
        met &= more is None or more >= LEAST_FITS.get(model, {}).get(context, 0)
        met &= times is None or times <= LEAST_ATTENTION
    return Row(model, context, batch, scheme, cache, rates, ratio, fits, more, times, least, met)


def _rates(found: Sequence[dict]) -> tuple[float, ...]:
    return tuple(one["batch"] / seconds for one in found for seconds in one.get("step_s", ()))


def _parts(one: dict) -> list[dict]:
    return one.get("trace", {}).get("parts", [])


def parts_of(outcomes: Sequence[Outcome]) -> list[Part]:
    """Of every traced step; a scheme is named with its cache, a batch with its context."""
    return [
        Part(
            f"{o.task.model}, {one['context']} tokens", one["batch"], f"{o.task.variant}, {o.task.cache} cache", **part
        )
        for o in outcomes
        for one in (o.result or {}).get("decoding", [])
        for part in _parts(one)
    ]


def write_json(path: Path, device: str, outcomes: Sequence[Outcome]) -> None:
    """Everything, every sample included; whole or not at all."""
    write_rows(path, device, rows_of(outcomes), outcomes)


def show(outcomes: Sequence[Outcome], out: Console) -> None:
    """The figures, and last what is wrong."""
    rows = rows_of(outcomes)
    show_tables([*([_speeds(rows)] if rows else []), *steps_tables(parts_of(outcomes))], outcomes, out)


def _speeds(rows: Sequence[Row]) -> Table:
    table = Table(title="Decoding sequences of different lengths: tokens a second, medians over rounds and engines")
    for heading in ("model", "context", "batch", "weights", "cache"):
        table.add_column(heading)
    for heading in ("tokens/s", "spread", "of bf16", "fit", "of bf16", "attention, of its bytes", "bar", ""):
        table.add_column(heading, justify="right")
    for row in rows:
        rate = "does not fit" if row.rate is None else f"{row.rate:.0f}"
        spread = "-" if row.spread is None else f"{100 * row.spread:.1f} %"
        ratio, more, times, least = (
            f"{number:.2f}" if number else "-" for number in (row.ratio, row.more_fit, row.attention, row.least)
        )
        words = "" if row.met is None else in_words(row.met)
        place = row.model, str(row.context), str(row.batch), row.scheme, row.cache
        table.add_row(*place, rate, spread, ratio, str(row.fits), more, times, least, words)
    return table


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The tables for a note."""
    return in_markdown((_speeds(rows_of(outcomes)), *steps_tables(parts_of(outcomes))))


if __name__ == "__main__":
    print(markdown(read(Path(sys.argv[1]))))
