"""The model of a run: a folder on every host, or a hub id; with checks for problems that would stop the run.

verl and vLLM find such problems minutes after the start, the engine only after the trainer has loaded its weights.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ascend_quant.advise.model import HUB_ID
from ascend_quant.files.documents import BadDocument
from ascend_quant.profile.checkpoints import TEXT, BadCheckpoint, ModelFolder
from ascend_quant.recipes.keys import RANKS

YES = ("1", "true", "yes", "on")


def place(model: str) -> str:
    """Convert a user's model to the absolute path of a folder, or a hub id.

    A name that cannot be an id, or whose first folder exists, is treated as a folder, whether that exists or not.
    """
    here = os.path.exists(model.partition("/")[0])
    return model if HUB_ID.fullmatch(model) and not here else os.path.abspath(model)


def of_hub(model: str) -> bool:
    """Return whether a run's model is a hub id."""
    return not model.startswith("/")


def is_cached(model: str, environment: Mapping[str, str]) -> bool:
    """Return whether the hub's cache contains the config.json of an id."""
    snapshots = hub_cache(environment) / f"models--{model.replace('/', '--')}" / "snapshots"
    return os.path.isdir(snapshots) and any(snapshots.glob("*/config.json"))


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder of huggingface_hub's cache."""
    if cache := environment.get("HF_HUB_CACHE"):
        return Path(cache)
    home = environment.get("HF_HOME") or Path(environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def problems(model: str, tensor_parallel: int, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the problems with a run's model on this host, and their fixes.

    Args:
        tensor_parallel: tensor-parallel size of the engine.
        environment: environment of the run's processes.
    """
    if of_hub(model):
        if environment.get("HF_HUB_OFFLINE", "").lower() in YES and not is_cached(model, environment):
            fix = f"unset HF_HUB_OFFLINE, or copy the model here and give --model its folder: {model}"
            yield f"{model} is not in the hub cache, and HF_HUB_OFFLINE is set", fix
    elif not os.path.exists(model):
        fix = "copy it there, or correct --model; a hub id is OWNER/NAME, where there is no folder OWNER"
        yield f"{model} is missing on this host", fix
    else:
        yield from _of_folder(model, tensor_parallel)


def _of_folder(model: str, tensor_parallel: int) -> Iterator[tuple[str, str]]:
    try:
        folder = ModelFolder(Path(model))
        config, quantization = folder.config, folder.quantization
    except (BadCheckpoint, BadDocument) as error:
        yield str(error), "--model is a folder with config.json and safetensors (docs/models.md)"
        return
    if quantization:
        what = f"{model} is already quantized ({quantization!s:.80}), but training needs unquantized weights"
        yield what, f"convert it first, with ascend-quant convert {model} OUT --scheme bf16"
    text = config.get(TEXT) or config
    heads = text.get("num_attention_heads")
    keys = text.get("num_key_value_heads") or heads
    if heads and not _shared(heads, keys, tensor_parallel):
        smaller = (ranks for ranks in range(1, tensor_parallel) if tensor_parallel % ranks == 0)
        fits = max(ranks for ranks in smaller if _shared(heads, keys, ranks))
        what = (
            f"{model} has {heads} attention heads and {keys} key-value heads, which cannot be split over "
            f"{tensor_parallel} devices"
        )
        yield what, f"-- {RANKS}={fits}"


def _shared(heads: int, keys: int, ranks: int) -> bool:
    """Return whether vLLM can split the heads; KV heads are replicated if there are fewer than ranks."""
    return heads % ranks == 0 and (keys % ranks == 0 or ranks % keys == 0)
