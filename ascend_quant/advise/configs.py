"""Where a model's config.json is: a folder, the file itself, or a model of the Hugging Face hub."""

import json
import re
from pathlib import Path

from ascend_quant.advise import AdviceError

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def read_config(model: str) -> dict:
    """The config.json of `model`, a path or a hub id.

    Raises:
        AdviceError: there is none, or it is not a JSON object.
    """
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    elif not path.exists() and HUB_ID.fullmatch(model):
        path = _from_hub(model)
    if not path.is_file():
        raise AdviceError(f"no config.json at {path}; MODEL is a folder, a config.json or a hub id such as owner/name")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise AdviceError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise AdviceError(f"{path} holds no JSON object, but {type(config).__name__}")
    return config


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
