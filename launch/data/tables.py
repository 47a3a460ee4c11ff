"""Rows of parquet and JSON files: read in order, written as verl's data set reads them; what was made of them."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascend_quant.documents import BadDocument, parse_json
from launch.errors import LaunchError

Progress = Callable[[str, int, int | None], None]  # what is done, how much of it, of how much if that is known
Row = dict[str, Any]
BATCH = 10_000  # rows
SHOWN = 5
LONGEST_LINE = 16 << 20  # bytes
WORDS = {str: "a text", list: "a list", dict: "an object"}


def silent(what: str, done: int, total: int | None) -> None:
    """Tell nobody."""


@dataclass
class Summary:
    """What was made.

    Attributes:
        rows: by file.
        notes: what a user should know of them, a line each.
    """

    rows: dict[Path, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people."""
        return [*(f"{file}: {rows} rows" for file, rows in self.rows.items()), *self.notes]


class DataError(LaunchError):
    """Data that cannot be had or used; one line that says which, and what to do."""


class WrongRequest(DataError):
    """There is no such data set, or it is not made in that way."""


def rows_of(files: list[Path], columns: Mapping[str, type], progress: Progress) -> Iterator[Row]:
    """The rows of all files, each with these columns at least, of these types or None.

    Raises:
        DataError: a file cannot be read, lacks a column, or has something else in it.
    """
    for file in files:
        done = 0
        total, batches = _parquet(file, columns) if file.suffix == ".parquet" else (None, _json(file))
        for batch in batches:
            for number, row in enumerate(batch, start=done):
                _must_have(file, row, columns)
                for name, kind in columns.items():
                    if not isinstance(row[name], kind | None):
                        what = f"{name} is a {type(row[name]).__name__} and not {WORDS[kind]}"
                        raise DataError(f"{file}: row {number}: {what}: is it another set?")
                yield row
            done += len(batch)
            progress(f"reading {file.name}", done, total)


def _must_have(file: Path, have: Collection[str], columns: Mapping[str, type]) -> None:
    if missing := [name for name in columns if name not in have]:
        its = ", ".join(sorted(have))
        raise DataError(f"{file}: has no column {missing[0]}; its columns are {its}: is it another set?")


def _parquet(file: Path, columns: Mapping[str, type]) -> tuple[int, Iterator[list[Row]]]:
    from pyarrow.parquet import ParquetFile

    with _reading(file, "parquet file"):
        table = ParquetFile(file)
        total = table.metadata.num_rows
    _must_have(file, table.schema_arrow.names, columns)
    if twice := [name for name in columns if table.schema_arrow.names.count(name) > 1]:
        raise DataError(f"{file}: has two columns {twice[0]}: is it another set?")

    def batches() -> Iterator[list[Row]]:
        with _reading(file, "parquet file"):
            for batch in table.iter_batches(BATCH, columns=list(columns)):
                yield batch.to_pylist()

    return total, batches()


def _json(file: Path) -> Iterator[list[Row]]:
    with _reading(file, "JSON file"), file.open("rb") as lines:
        number = 0
        while line := lines.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise DataError(
                    f"{file}: line {number} has more than {LONGEST_LINE >> 20} MiB: one row a line is needed"
                )
            try:
                row = parse_json(line.decode(), f"{file}: line {number}")
            except BadDocument as error:
                raise DataError(f"{file}: line {number} is no JSON ({error.__cause__}): copy it again") from error
            if not isinstance(row, dict):
                raise DataError(f"{file}: line {number} is no JSON object: one row a line is needed")
            yield [row]


@contextmanager
def _reading(file: Path, what: str) -> Iterator[None]:
    """What goes wrong while a file is read is a DataError."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError, OverflowError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise DataError(f"{file}: is no {what} that can be read ({why}): copy it again") from error


def verl_row(data_source: str, prompt: str, answer: str, extra: Row) -> Row:
    """One row in the columns of verl's data set."""
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": extra,
    }


def refuse_without(lacking: str, what: str, numbers: list[int], wanted: str) -> None:
    """Raise DataError if there are rows without a question or an answer: the published sets have none.

    Args:
        numbers: of those rows, from 0.
    """
    if numbers:
        shown = ", ".join(map(str, numbers[:SHOWN])) + (", .." if len(numbers) > SHOWN else "")
        raise DataError(f"{what}: {len(numbers)} rows have no {lacking} ({wanted}): rows {shown}. Copy the file again")


def write(file: Path, rows: list[Row]) -> None:
    """Write a parquet file, all of it or nothing."""
    from pyarrow import Table
    from pyarrow.parquet import write_table

    if not rows:
        raise DataError(f"{file}: there would be no rows in it: is the source empty?")
    table, unfinished = Table.from_pylist(rows), file.with_name(f"{file.name}.unfinished")
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.unlink(missing_ok=True)  # of a run that was killed, or another's link: neither is written through
        try:
            with unfinished.open("xb") as out:
                write_table(table, out)
            os.replace(unfinished, file)
        finally:
            unfinished.unlink(missing_ok=True)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What goes wrong while files are written there is a DataError."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise DataError(f"{folder} cannot be written ({why}): free some space, or give another with --to") from error
