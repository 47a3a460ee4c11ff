"""The files of a run: model, data, and the folder of the result."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.doctor import facts
from launch.doctor.gather.system import existing


def paths(
    model: str | None, data: Sequence[str], out: str | None, environment: Mapping[str, str]
) -> tuple[facts.Path, ...]:
    """Which of them are there."""
    found = [] if model is None else [_model(model, environment)]
    found += [facts.Path("data", file, Path(file).is_file()) for file in data]
    if out is not None:
        found.append(facts.Path("out", out, Path(out).is_dir(), writable=os.access(existing(Path(out)), os.W_OK)))
    return tuple(found)


def _model(model: str, environment: Mapping[str, str]) -> facts.Path:
    if Path(model).exists() or model.startswith(("/", ".", "~")) or model.count("/") != 1:
        return facts.Path("model", model, (Path(model) / "config.json").is_file())
    snapshots = hub_cache(environment) / f"models--{model.replace('/', '--')}" / "snapshots"
    return facts.Path("model", model, any(snapshots.glob("*/config.json")), hub=True)


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps what it has downloaded."""
    if cache := environment.get("HF_HUB_CACHE"):
        return Path(cache)
    home = environment.get("HF_HOME") or Path(environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"
