"""Parquet files of verl's data sets, written whole or not at all."""

from pathlib import Path
from typing import Any

from ascend_quant.datasets import DataError
from ascend_quant.files.whole_file import write_whole

Row = dict[str, Any]


def write(file: Path, rows: list[Row]) -> str:
    """Write a parquet file atomically; return a description of what was written."""
    from pyarrow import BufferOutputStream, Table
    from pyarrow.parquet import write_table

    if not rows:
        raise DataError(f"{file}: no rows to write: is the source empty?")
    content = BufferOutputStream()
    write_table(Table.from_pylist(rows), content)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, content.getvalue().to_pybytes())
    return f"{file}: {len(rows)} rows"
