"""The files of a data set: where those of a published one are, their rows in order, and what is written for verl.

A published set is in a folder, as `hf download` leaves it, or is fetched from the hub. Rows are read from parquet and
JSON, and written to parquet; a `Summary` says what was made.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from launch.errors import LaunchError

KINDS = (".parquet", ".jsonl", ".json")
PARTS = re.compile(r"(?:-([0-9]{5})-of-([0-9]{5}))?\.(?:parquet|jsonl|json)")  # what follows a set's name
Progress = Callable[[str, int, int | None], None]  # what is done, how much of it, of how much if that is known
Row = dict[str, Any]
BATCH = 10_000  # rows
SHOWN = 5
WORDS = {str: "text", list: "lists", dict: "objects"}


class Published(NamedTuple):
    """A data set on the hub.

    Attributes:
        repository: its id.
        wanted: the files that are fetched, as patterns.
    """

    repository: str
    wanted: tuple[str, ...]


def folder_of(published: Published, source: Path | None) -> Path:
    """The folder of the copy; without one, the hub's, downloaded if it is not there yet."""
    if source is None:
        return _downloaded(published)
    if not os.path.isdir(source):
        raise DataError(f"--from {str(source)[:200]}: is no folder; {_how(published)}")
    return source


def files_of(published: Published, folder: Path, name: str, without: str | None = None) -> list[Path]:
    """The file NAME.parquet, or all of its parts, NAME-00000-of-00002.parquet and so on, in order; else JSON so named.

    Folders whose names begin with a dot are not looked into.

    Args:
        without: a subfolder to leave out.

    Raises:
        DataError: there is none, `folder` is the one to leave out, several folders have some, or a part is missing.
    """
    if folder.resolve().name == without:
        raise DataError(f"--from {folder}: is the configuration {without}, which is not trained on; {_how(published)}")
    found = [file for file in sorted(folder.rglob(f"{name}*")) if PARTS.fullmatch(file.name.removeprefix(name))]
    for kind in KINDS:
        if files := [file for file in found if file.suffix == kind and _belongs(file, folder, without)]:
            _must_be_one_set(files, name)
            return files
    raise DataError(f"{folder}: has no {name}*{KINDS[0]} or .jsonl of {published.repository}; {_how(published)}")


def _belongs(file: Path, folder: Path, without: str | None) -> bool:
    above = file.relative_to(folder).parts[:-1]
    return without not in above and not any(part.startswith(".") for part in above) and file.is_file()


def _must_be_one_set(files: list[Path], name: str) -> None:
    """Raise DataError for files of several copies, and for parts of which one is missing."""
    if folders := sorted({str(file.parent) for file in files})[1:]:
        raise DataError(f"{name}: is in {files[0].parent} and in {folders[-1]}: give --from one of them")
    parts = [PARTS.fullmatch(file.name.removeprefix(name)).groups()[:2] for file in files]
    total = parts[0][1]
    if len(parts) != int(total or 1) or any(part != (total and f"{at:05d}", total) for at, part in enumerate(parts)):
        raise DataError(
            f"{files[0].parent}: {', '.join(file.name for file in files[:5])}: not one set in all its parts"
        )


def _downloaded(published: Published) -> Path:
    from httpx import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        wanted = list(published.wanted)
        return Path(snapshot_download(published.repository, repo_type="dataset", allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, HTTPError, OSError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{published.repository} cannot be had from the hub ({why}); {_how(published)}") from error


def _how(published: Published) -> str:
    return (
        f"where there is a network: hf download {published.repository} --repo-type dataset --local-dir FOLDER; then "
        "give --from FOLDER"
    )


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
    """The rows of all files in order, with these columns alone, of these types or None.

    Raises:
        DataError: a file cannot be read, lacks a column, or has another type in it.
    """
    from pyarrow import ArrowException, dataset

    for file in files:
        done = 0
        try:
            content = dataset.dataset(file, format="parquet" if file.suffix == ".parquet" else "json")
            total = content.count_rows() if file.suffix == ".parquet" else None
            _must_fit(file, content.schema, columns)
            for batch in content.to_batches(columns=list(columns), batch_size=BATCH):
                yield from batch.to_pylist()
                done += len(batch)
                progress(f"reading {file.name}", done, total)
        except (ArrowException, OSError, UnicodeDecodeError) as error:
            why = (str(error) or type(error).__name__).splitlines()[0][:200]
            raise DataError(f"{file}: cannot be read ({why}): copy it again") from error


def _must_fit(file: Path, schema: Any, columns: Mapping[str, type]) -> None:
    """Raise DataError for a column that is missing, or has values of another type."""
    from pyarrow import types

    fits = {str: (types.is_string, types.is_large_string), list: (types.is_list, types.is_large_list)}
    fits[dict] = (types.is_struct,)
    for name, kind in columns.items():
        if name not in schema.names:
            its = ", ".join(sorted(schema.names))
            raise DataError(f"{file}: has no column {name}; its columns are {its}: is it another set?")
        found = schema.field(name).type
        if not any(fit(found) for fit in (*fits[kind], types.is_null)):
            raise DataError(f"{file}: {name} has {found} and not {WORDS[kind]}: is it another set?")


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
