"""Reader of benchmarks/results/measured.csv, the measured figures that the README and the pages quote."""

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"


class Row(NamedTuple):
    """Row of one figure of one run; rows of the same run were measured beside each other.

    Attributes:
        run: date, hardware and what was run; a visit's page has the same date and hardware.
        command: of `./run.sh`, without the names of files.
        case: what else tells the row from others of its figure, by name: scheme, batch, lengths.
        value: the median of its samples; `low` and `high` are the least and the greatest, None of one sample.
        unit: 1 for shares, ratios and rewards.
    """

    run: str
    date: str
    hardware: str
    versions: str
    command: str
    model: str
    case: dict[str, str]
    figure: str
    value: float
    low: float | None
    high: float | None
    unit: str

    @property
    def named(self) -> dict[str, str]:
        """Case of the row, with its run and its model."""
        return {**self.case, "run": self.run, "model": self.model}


def rows(figure: str, **case: str | int) -> list[Row]:
    """Return the rows of a figure whose case has these values; `run` and `model` may stand among them."""
    wanted = {name: str(value) for name, value in case.items()}.items()
    return [row for row in every() if row.figure == figure and wanted <= row.named.items()]


def one(figure: str, **case: str | int) -> Row:
    """Return the only row of this case.

    Raises:
        LookupError: there is none, or there are several.
    """
    found = rows(figure, **case)
    if len(found) != 1:
        raise LookupError(f"measured.csv has {len(found)} rows of {figure!r} with {case}")
    return found[0]


@cache
def every() -> list[Row]:
    """Return all rows of the file."""
    with (RESULTS / "measured.csv").open(newline="") as file:
        return [_row(line) for line in csv.DictReader(file)]


def _row(line: dict[str, str]) -> Row:
    case = dict(pair.split("=", 1) for pair in line["case"].split("; ") if pair)
    low, high = (float(line[name]) if line[name] else None for name in ("low", "high"))
    return Row(**{**line, "case": case, "value": float(line["value"]), "low": low, "high": high})
