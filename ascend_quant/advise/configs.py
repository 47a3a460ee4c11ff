"""Where a model's config.json is: a folder, the file itself, or a model of the Hugging Face hub."""

import os
import re
from pathlib import Path

from ascend_quant.advise import AdviceError
from ascend_quant.documents import BadDocument, read_json

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def read_config(model: str) -> dict:
    """The config.json of `model`, a path or a hub id.

    Raises:
        AdviceError: there is none, or it is not a JSON object (see documents.py).
    """
    path = Path(model)
    if os.path.isdir(model):  # Path's own methods raise for a name that no file system takes
        path = path / "config.json"
    elif not os.path.exists(model) and HUB_ID.fullmatch(model):
        path = _from_hub(model)
    if not os.path.isfile(path):
        at = f"{path!s:.200}"
        raise AdviceError(f"no config.json at {at}; MODEL is a folder, a config.json or a hub id such as owner/name")
    try:
        return read_json(path)
    except BadDocument as error:
        raise AdviceError(str(error)) from error


def _from_hub(model: str) -> Path:
    """The file in the hub's cache, fetched if it is not there yet; of the whole model this alone."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise AdviceError(
            f"{model!r} is no path, and huggingface_hub, which could look it up, is not installed"
        ) from error
    try:
        return Path(hf_hub_download(model, "config.json"))
    except (OSError, ValueError) as error:  # all of the hub's own errors are one or the other
        raise AdviceError(f"{model!r} is no path, and the hub has no config.json for it: {error}") from error
