"""The files of a data set: where those of a published one are, its rows in order, and what is written for verl.

A published set is in a folder, as `hf download` leaves it, or is fetched from the hub. Rows are read from parquet and
JSON lines, and written to parquet.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from ascend_quant.whole_file import write_whole
from launch.errors import LaunchError

KINDS = (".parquet", ".jsonl")
PART = re.compile(r"(-[0-9]{5}-of-[0-9]{5})?\.[a-z]+")  # what follows a set's name
Progress = Callable[[str, int, int | None], None]  # what is done, how much of it, of how much if that is known
Row = dict[str, Any]
RowModel = TypeVar("RowModel", bound=BaseModel)


class DataError(LaunchError):
    """Data that cannot be had or used; one line that says which, and what to do."""


class Published(NamedTuple):
    """A data set on the hub.

    Attributes:
        repository: its id.
        wanted: the files that are fetched, as patterns.
    """

    repository: str
    wanted: tuple[str, ...]


def silent(what: str, done: int, total: int | None) -> None:
    """Tell nobody."""


def folder_of(published: Published, source: Path | None) -> Path:
    """The folder of the copy; without one, the hub's, downloaded if it is not there yet."""
    if source is None:
        return _downloaded(published)
    if not os.path.isdir(source):
        raise DataError(f"--from {str(source)[:200]}: is no folder; {_how(published)}")
    return source


def files_of(published: Published, folder: Path, name: str, without: str | None = None) -> list[Path]:
    """The file NAME.parquet, or all of its parts, NAME-00000-of-00002.parquet and so on, in order; else JSON so named.

    Args:
        without: a folder whose files are left out.

    Raises:
        DataError: there is none, there are several copies, or a part is missing.
    """
    for kind in KINDS:
        named = (file for file in folder.rglob(f"{name}*{kind}") if PART.fullmatch(file.name.removeprefix(name)))
        found = sorted(file for file in named if file.absolute().parent.name != without)
        parts = [f"{name}-{number:05d}-of-{len(found):05d}{kind}" for number in range(len(found))]
        if found and [file.name for file in found] not in ([f"{name}{kind}"], parts):
            shown = ", ".join(map(str, found[:5]))
            raise DataError(f"{shown}: not one {name} in all its parts: give --from the folder of one whole copy")
        if found:
            return found
    raise DataError(f"{folder}: has no {name}*{KINDS[0]} or .jsonl of {published.repository}; {_how(published)}")


def _downloaded(published: Published) -> Path:
    from httpx import HTTPError
    from huggingface_hub import snapshot_download

    try:
        wanted = list(published.wanted)
        return Path(snapshot_download(published.repository, repo_type="dataset", allow_patterns=wanted))
    except (HTTPError, OSError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{published.repository} cannot be had from the hub ({why}); {_how(published)}") from error


def _how(published: Published) -> str:
    return (
        f"where there is a network: hf download {published.repository} --repo-type dataset --local-dir FOLDER; then "
        "give --from FOLDER"
    )


def rows_of(files: list[Path], model: type[RowModel], progress: Progress) -> Iterator[RowModel]:
    """The rows of all files in order, with the model's columns alone.

    Raises:
        DataError: a file cannot be read or lacks a column, or a row is not as the model wants it.
    """
    from pyarrow import ArrowException, dataset

    wrong = "is it another set? If not, copy it again"
    for file in files:
        done = 0
        try:
            content = dataset.dataset(file, format="parquet" if file.suffix == ".parquet" else "json")
            total = content.count_rows()
            for batch in content.to_batches(columns=list(model.model_fields)):
                for row in batch.to_pylist():
                    yield model.model_validate(row)
                    done += 1
                progress(f"reading {file.name}", done, total)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise DataError(f"{file}: row {done}, {place}: {first['msg']}: {wrong}") from error
        except (ArrowException, OSError) as error:
            why = (str(error) or type(error).__name__).splitlines()[0][:200]
            raise DataError(f"{file}: cannot be read ({why}): {wrong}") from error


def write(file: Path, rows: list[Row]) -> str:
    """Write a parquet file, all of it or nothing. Returns what was made, for people."""
    from pyarrow import BufferOutputStream, Table
    from pyarrow.parquet import write_table

    if not rows:
        raise DataError(f"{file}: there would be no rows in it: is the source empty?")
    content = BufferOutputStream()
    write_table(Table.from_pylist(rows), content)
    with writing(file.parent):
        write_whole(file, content.getvalue().to_pybytes())
    return f"{file}: {len(rows)} rows"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Make the folder; what goes wrong while files are written there is a DataError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise DataError(f"{folder} cannot be written ({why}): free some space, or give another with --to") from error
