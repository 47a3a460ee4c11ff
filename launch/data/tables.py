"""Reading rows of parquet and JSON files in order, and writing rows as verl's data set reads them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.data.errors import DataError
from launch.data.summary import Progress

Row = dict[str, Any]
BATCH = 10_000  # rows
SHOWN = 5


def rows_of(files: list[Path], columns: tuple[str, ...], progress: Progress) -> Iterator[Row]:
    """The rows of all files, each with these columns at least.

    Raises:
        DataError: a file cannot be read, or lacks a column.
    """
    for file in files:
        done = 0
        total, batches = _parquet(file) if file.suffix == ".parquet" else (None, _json(file))
        for batch in batches:
            for row in batch:
                if missing := [name for name in columns if name not in row]:
                    have = ", ".join(sorted(row))
                    raise DataError(f"{file}: has no column {missing[0]}; its columns are {have}: is it another set?")
                yield row
            done += len(batch)
            progress(f"reading {file.name}", done, total)


def _parquet(file: Path) -> tuple[int, Iterator[list[Row]]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        table = ParquetFile(file)
    except (ArrowException, OSError) as error:
        raise DataError(f"{file}: is no parquet file ({str(error).splitlines()[0]}): copy it again") from error
    return table.metadata.num_rows, (batch.to_pylist() for batch in table.iter_batches(BATCH))


def _json(file: Path) -> Iterator[list[Row]]:
    with file.open() as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{file}: line {number} is no JSON ({error}): copy it again") from error
            if not isinstance(row, dict):
                raise DataError(f"{file}: line {number} is no JSON object: one row a line is needed")
            yield [row]


def verl_row(data_source: str, prompt: str, answer: str, extra: Row) -> Row:
    """One row in the columns of verl's data set."""
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": extra,
    }


def refuse_without_answer(what: str, numbers: list[int], wanted: str) -> None:
    """Raise DataError if there are rows without an answer: the published sets have none.

    Args:
        numbers: of those rows, from 0.
    """
    if numbers:
        shown = ", ".join(map(str, numbers[:SHOWN])) + (", .." if len(numbers) > SHOWN else "")
        raise DataError(f"{what}: {len(numbers)} rows have no answer ({wanted}): rows {shown}. Copy the file again")


def write(file: Path, rows: list[Row]) -> None:
    """Write a parquet file, all of it or nothing."""
    from pyarrow import Table
    from pyarrow.parquet import write_table

    if not rows:
        raise DataError(f"{file}: there would be no rows in it: is the source empty?")
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f"{file.name}.unfinished")
    write_table(Table.from_pylist(rows), unfinished)
    os.replace(unfinished, file)
