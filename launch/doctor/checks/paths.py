"""The files of a run on each host: model, data, and the folder of the result."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launch.doctor.checking import Said, check, error, ok, warning
from launch.doctor.checks.system import existing
from launch.doctor.facts import Facts
from launch.doctor.facts import Path as RunPath
from launch.doctor.requirements import Wanted
from launch.root import exists, is_file, is_folder


def paths(
    model: str | None, data: Sequence[str], out: str | None, environment: Mapping[str, str]
) -> tuple[RunPath, ...]:
    """Which of them are there."""
    found = [] if model is None else [_model(model, environment)]
    found += [RunPath("data", file, is_file(Path(file))) for file in data]
    if out is not None:
        found.append(RunPath("out", out, is_folder(Path(out)), writable=os.access(existing(Path(out)), os.W_OK)))
    return tuple(found)


def _model(model: str, environment: Mapping[str, str]) -> RunPath:
    if exists(Path(model)) or model.startswith(("/", ".", "~")) or model.count("/") != 1:
        return RunPath("model", model, is_file(Path(model) / "config.json"))
    snapshots = hub_cache(environment) / f"models--{model.replace('/', '--')}" / "snapshots"
    return RunPath("model", model, is_folder(snapshots) and any(snapshots.glob("*/config.json")), hub=True)


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps what it has downloaded."""
    if cache := environment.get("HF_HUB_CACHE"):
        return Path(cache)
    home = environment.get("HF_HOME") or Path(environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


@check(
    "paths.model",
    looks_at=(
        "the model's folder, or its id in the cache of the hub (HF_HOME)",
        "模型目录，或 hub 缓存（HF_HOME）中的模型",
    ),
    means=("every host loads the model itself", "每台主机都要自行加载模型"),
    fix=(
        "copy it there, or mount the storage; with an id, download it once on each host",
        "复制或挂载到该主机；使用 hub id 时在每台主机上各下载一次",
    ),
)
def model(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    for path in _of(facts, "model"):
        if path.found:
            yield ok(path.path)
        elif not path.hub:
            yield error(f"no model in {path.path}: no config.json", "copy it to this host, or correct --model")
        elif facts.variables.get("HF_HUB_OFFLINE") in ("1", "true", "yes", "on"):
            fix = f"unset HF_HUB_OFFLINE, or copy the model here and give --model its folder: {path.path}"
            yield error(f"{path.path} is not in the cache of the hub, and HF_HUB_OFFLINE is set", fix)
        else:
            yield warning(f"{path.path} is not in the cache: it is downloaded at the start", f"hf download {path.path}")


@check(
    "paths.data",
    looks_at=("the data files of the recipe", "recipe 所需的数据文件"),
    means=("verl reads them on the head and in its workers", "verl 在 head 与 worker 上读取"),
    fix=("make them with ./run.sh data NAME, or correct --data", "用 ./run.sh data NAME 生成，或修正 --data"),
)
def data(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    found = _of(facts, "data")
    missing = [path.path for path in found if not path.found]
    for path in missing:
        yield error(f"there is no {path}", f"make it with ./run.sh data {wanted.data_name}, or correct --data")
    if found and not missing:
        yield ok(f"{len(found)} files")


@check(
    "paths.out",
    looks_at=("whether the folder of the result can be written", "结果目录是否可写"),
    means=("checkpoints are written at the end of hours of work", "checkpoint 在数小时的训练后才写入"),
    fix=("give another folder with --out, or the rights for this one", "用 --out 指定其他目录，或修改其权限"),
)
def out(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    for path in _of(facts, "out"):
        if path.writable:
            yield ok(path.path)
        else:
            yield error(f"{path.path} cannot be written", "give another folder with --out, or the rights for this one")


def _of(facts: Facts, what: str) -> list[RunPath]:
    return [path for path in facts.paths if path.what == what]
