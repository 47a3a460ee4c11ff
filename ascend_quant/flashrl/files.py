"""Locations of configs and profiles: a path on this machine, or owner/name/path on the Hugging Face hub."""

import logging
import os
import re
from pathlib import Path

from ascend_quant.profile.files import files_of

logger = logging.getLogger(__name__)

HUB_FILE = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)/(?P<file>\w.*)")


class ConfigError(ValueError):
    """Raised if a config, or a file that it names, cannot be used; the message says which and why."""


def find(value: str) -> Path:
    """Return the absolute path of the file `value`, which is downloaded if it is not local.

    Raises:
        ConfigError: there is no such local file, and it is not on the hub or the hub is not reachable.
    """
    path = os.path.expanduser(value)
    if os.path.isfile(path):  # Path's methods raise errors for invalid names
        return Path(path).absolute()
    if os.path.exists(path):
        raise ConfigError(f"{value} is not a file")
    if not (parts := HUB_FILE.fullmatch(value)):
        shown = f"{' '.join(value.split()):.200}"
        raise ConfigError(f"file {shown} does not exist, and the value is not of the hub's form owner/name/path")
    return download(parts["repository"], parts["file"])


def find_profile(value: str) -> Path:
    """Return the absolute path of the profile `value` (see `profile_files`), which is downloaded if it is not local.

    Raises:
        ConfigError: see `find`.
    """
    first, *_ = [find(str(file)) for file in profile_files(value)]
    return first


def profile_files(value: str) -> tuple[Path, ...]:
    """Return the names of the files of a profile: FlashRL's `.pt`, or our `.safetensors` and `.json`.

    Raises:
        ConfigError: `value` is not a file name.
    """
    path = Path(value)
    if not path.name:
        raise ConfigError(f"profile {value!r} is not a file name")
    return (path,) if path.suffix == ".pt" else files_of(path)


def is_profile_here(value: str) -> bool:
    """Return whether all files of a profile are local."""
    return all(os.path.isfile(os.path.expanduser(file)) for file in profile_files(value))


def download(repository: str, file: str) -> Path:
    """Return the path of a file of a hub repository, from this machine's cache or downloaded.

    Raises:
        ConfigError: the download failed; the message has the client's error.
    """
    from huggingface_hub import hf_hub_download

    logger.info("asking the Hugging Face hub for %s of %s", file, repository)
    try:
        return Path(hf_hub_download(repo_id=repository, filename=file))
    except (OSError, ValueError) as error:  # the base classes of the client's and the network's errors
        said = str(error).strip(" .\n") or type(error).__name__
        raise ConfigError(
            f"there is no local file {repository}/{file}, and downloading {file} of {repository} from the hub "
            f"failed: {said}"
        ) from error
