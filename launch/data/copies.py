"""Where the files of a published data set are: in a folder, as `hf download` leaves them, or fetched from the hub."""

import re
from pathlib import Path
from typing import NamedTuple

from launch.data.tables import DataError
from launch.root import is_folder

KINDS = (".parquet", ".jsonl", ".json")
PARTS = re.compile(r"(?:-([0-9]{5})-of-([0-9]{5}))?\.(?:parquet|jsonl|json)")  # what follows a set's name


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
    if not is_folder(source):
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
