"""Checks of the run itself: the modules that it imports, its model and data, its output folder."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from launch import existing
from launch.doctor.checking import Finding, check, error, ok, warning
from launch.doctor.facts import GIB, Facts, Files, Wanted
from launch.environment.resolve import environment as process_environment
from launch.inputs import model
from launch.nodes.checkpoints import lacking_room
from launch.nodes.rows import lacking
from launch.recipes.stacks import pins

LEAST_OUT_GIB = 1
OUT_GIB = {"none": 5, "gpu": 50, "npu": 50}


def files(wanted: Wanted, environment: Mapping[str, str]) -> Files:
    """Return which of the run's files exist, and their problems."""
    out = existing(Path(wanted.out)) if wanted.out is not None else None
    name, variables = wanted.model, process_environment(wanted.stack, environment)
    return Files(
        model=None if name is None else model.is_cached(name, environment) if model.of_hub(name) else True,
        wrong_model=() if name is None else tuple(model.problems(name, wanted.tensor_parallel, variables)),
        missing_data=tuple(file for file in wanted.data if not os.path.isfile(file)),
        wrong_data=tuple(lacking(wanted.data, wanted.columns, wanted.prompt, wanted.least_rows)),
        out=None if out is None else shutil.disk_usage(out).free,
        lacking_room=tuple(lacking_room(wanted.saving)) if wanted.head else (),  # rank 0 of the trainer writes them
        writable=out is None or os.access(out, os.W_OK),
    )


@check("run.imports")
def imports(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    for one in facts.missing:
        yield error(one.what, one.fix)
    if wanted.imports and not facts.missing:
        yield ok(f"the {len(wanted.imports)} modules that the recipe needs are installed")


@check("run.inputs")
def inputs(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    found = facts.files
    for what, fix in found.wrong_model:
        yield error(what, fix)
    if found.model and not found.wrong_model:
        yield ok(f"{wanted.model}")
    elif found.model is False and not found.wrong_model:
        yield warning(
            f"{wanted.model} is not in the cache: it is downloaded at the start", f"hf download {wanted.model}"
        )
    for file in found.missing_data:
        yield error(f"{file} does not exist", "create it with ./run.sh data, or correct --data")
    for line in found.wrong_data:
        yield error(line, "correct the file (docs/models.md), or --data")
    if wanted.data and not found.missing_data + found.wrong_data:
        yield ok(f"{len(wanted.data)} data files")


@check("run.out")
def out(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    found, need = facts.files, OUT_GIB[pins(wanted.stack).devices]
    if found.out is None:
        return
    text = f"{found.out / GIB:.0f} GiB free for {wanted.out}"
    if not found.writable:
        yield error(
            f"{wanted.out} cannot be written", "give another folder with --out, or get write permission for this one"
        )
    elif found.lacking_room:
        yield from (error(what, fix) for what, fix in found.lacking_room)
    elif found.out < need * GIB:
        level = error if found.out < LEAST_OUT_GIB * GIB else warning
        yield level(f"{text}; {need} needed", "free some, or give another folder with --out")
    else:
        yield ok(text)
