"""What the run itself brings: the modules that it imports, its model and data, its result, its correction."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from launch import existing
from launch.doctor.checking import Finding, check, error, ok, warning
from launch.doctor.facts import GIB, Facts, Files, Wanted
from launch.nodes.rows import lacking
from launch.stacks import pins

OUT_GIB = {"none": 5, "gpu": 50, "npu": 50}
YES = ("1", "true", "yes", "on")


def files(wanted: Wanted, environment: Mapping[str, str]) -> Files:
    """Which of the run's files are here."""
    out = existing(Path(wanted.out)) if wanted.out is not None else None
    return Files(
        model=None if wanted.model is None else model_is_here(wanted.model, environment),
        hub=wanted.model is not None and of_hub(wanted.model),
        missing_data=tuple(file for file in wanted.data if not os.path.isfile(file)),
        wrong_data=tuple(lacking(wanted.data, wanted.columns, wanted.prompt, wanted.least_rows)),
        out=None if out is None else shutil.disk_usage(out).free,
        writable=out is None or os.access(out, os.W_OK),
    )


def of_hub(model: str) -> bool:
    """Whether it is an id on the hub, and no folder."""
    return not os.path.exists(model) and not model.startswith(("/", ".", "~")) and model.count("/") == 1


def model_is_here(model: str, environment: Mapping[str, str]) -> bool:
    """Whether its config.json is in the folder, or in the cache of the hub."""
    if not of_hub(model):
        return os.path.isfile(Path(model) / "config.json")
    snapshots = hub_cache(environment) / f"models--{model.replace('/', '--')}" / "snapshots"
    return os.path.isdir(snapshots) and any(snapshots.glob("*/config.json"))


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps what it has downloaded."""
    if cache := environment.get("HF_HUB_CACHE"):
        return Path(cache)
    home = environment.get("HF_HOME") or Path(environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


@check("run.imports")
def imports(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    for one in facts.missing:
        yield error(one.what, one.fix)
    if wanted.imports and not facts.missing:
        yield ok(f"the {len(wanted.imports)} modules that the recipe needs are installed")


@check("run.inputs")
def inputs(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    found = facts.files
    if found.model:
        yield ok(f"{wanted.model}")
    elif found.model is False and not found.hub:
        yield error(f"no model in {wanted.model}: no config.json", "copy it to this host, or correct --model")
    elif found.model is False and facts.variables.get("HF_HUB_OFFLINE", "").lower() in YES:
        fix = f"unset HF_HUB_OFFLINE, or copy the model here and give --model its folder: {wanted.model}"
        yield error(f"{wanted.model} is not in the cache of the hub, and HF_HUB_OFFLINE is set", fix)
    elif found.model is False:
        yield warning(
            f"{wanted.model} is not in the cache: it is downloaded at the start", f"hf download {wanted.model}"
        )
    for file in found.missing_data:
        yield error(f"there is no {file}", f"make it with ./run.sh data {wanted.data_name}, or correct --data")
    for line in found.wrong_data:
        yield error(line, "correct the file (docs/own.md), or --data")
    if wanted.data and not found.missing_data + found.wrong_data:
        yield ok(f"{len(wanted.data)} data files")


@check("run.out")
def out(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    found, need = facts.files, OUT_GIB[pins(wanted.stack).devices]
    if found.out is None:
        return
    text = f"{found.out / GIB:.0f} GiB free for {wanted.out}"
    if not found.writable:
        yield error(f"{wanted.out} cannot be written", "give another folder with --out, or the rights for this one")
    elif found.out < need * GIB:
        yield warning(f"{text}; {need} wanted", "free some, or give another folder with --out")
    else:
        yield ok(text)


@check("run.correction")
def correction(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Recipes whose weights would lose a batch are refused where they are read (recipes/effective.py)."""
    if wanted.scheme in (None, "bf16") or not wanted.head:
        return
    if wanted.corrected:
        yield ok(f"importance weights correct for rollouts in {wanted.scheme}")
    else:
        what = f"rollouts in {wanted.scheme}, and nothing corrects for the trainer's other policy"
        yield warning(what, "--set correction.level=token")
