"""The model and the data files of a run, looked for before verl starts Ray on this machine.

Without this check, verl reports a missing folder as an invalid hub id, a minute after the start and in hundreds of
lines. On a Ray cluster that already exists the paths are those of its nodes, so nothing is checked.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ascend_quant.advise.model import HUB_ID
from ascend_quant.integrations.verl import cpu_settings

MODEL = "actor_rollout_ref.model.path"
FILES = ("train_files", "val_files")


class InputError(ValueError):
    """Raised for a model or a data file that is not on this machine."""


def check(config: Any) -> None:
    """Raise one error that lists what is missing, unless the run uses a Ray cluster that already exists.

    Raises:
        InputError: naming the settings, their values, and the command that writes the files.
    """
    if cpu_settings.will_start_ray(config) and (found := [*_missing(config)]):
        name = config.get("recipe", {}).get("data", {}).get("name")
        how = f"`ascend-quant data {name}` writes the data set's files, or set" if name else "set"
        raise InputError(f"{'; '.join(found)}: {how} these to what you have")


def _missing(config: Any) -> Iterator[str]:
    model = config.actor_rollout_ref.model.path
    if "://" not in model and not HUB_ID.fullmatch(model) and not _is_here(model):
        yield f"{MODEL}={model} is neither a folder nor a hub id"
    if config.data.get("custom_cls", {}).get("path"):  # the user's own class reads the files
        return
    for key in FILES:
        given = config.data.get(key) or ()
        for file in (given,) if isinstance(given, str) else given:
            if "://" not in file and not _is_here(file):
                yield f"data.{key}={file} does not exist"


def _is_here(path: str) -> bool:
    return Path(os.path.expanduser(path)).exists()
