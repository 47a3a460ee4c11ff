"""Where the files of a published data set are: in a folder, as `hf download` leaves them, or fetched from the hub."""

from pathlib import Path
from typing import NamedTuple

from launch.data.errors import DataError

KINDS = (".parquet", ".jsonl", ".json")


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
    if not source.is_dir():
        raise DataError(f"--from {source}: is no folder; {_how(published)}")
    return source


def files_of(published: Published, folder: Path, prefix: str, without: str | None = None) -> list[Path]:
    """The files whose name begins with `prefix`, in order: parquet if there are, else JSON.

    Args:
        without: a subfolder to leave out.
    """
    found = [file for file in sorted(folder.rglob(f"{prefix}*")) if without not in file.relative_to(folder).parts]
    for kind in KINDS:
        if files := [file for file in found if file.suffix == kind]:
            return files
    raise DataError(f"{folder}: has no {prefix}*{KINDS[0]} or .jsonl of {published.repository}; {_how(published)}")


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
