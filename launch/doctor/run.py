"""Checks of the run itself: the modules that it imports, its model and data, its output folder."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from ascend_quant.datasets import Name
from ascend_quant.datasets.rows import lacking
from ascend_quant.processes.environment import environment
from launch import existing
from launch.doctor.checking import Finding, error, warning
from launch.doctor.facts import Facts
from launch.doctor.machine import lacking_room
from launch.inputs import model
from launch.inputs.checkpoints import lacking_room as lacking_checkpoints
from launch.system.software import missing, python_path

OUT_GIB = {"none": 5, "gpu": 50, "npu": 50}


def imports(facts: Facts) -> Iterator[Finding]:
    """Check that the modules that the recipe needs are installed (verl issue 6931)."""
    for one in missing(facts.wanted.imports, python_path(facts.variables)):
        yield error(one.what, one.fix)


def inputs(facts: Facts) -> Iterator[Finding]:
    """Check that the model and the data are here, and that a run can read them (verl issue 758)."""
    wanted = facts.wanted
    if wanted.model is not None:
        yield from _model(wanted.model, wanted.tensor_parallel, environment(wanted.stack, facts.variables))
    files = [path for path in wanted.needs if path != wanted.model]
    for path in files:
        if not os.path.exists(path):
            yield error(f"{path} is missing on this host", _put(path))
    for line in lacking(files, wanted.columns, wanted.prompt, wanted.least_rows):
        yield error(line, "correct the file (docs/models.md), or --data")


def _model(name: str, tensor_parallel: int, variables: dict[str, str]) -> Iterator[Finding]:
    problems = list(model.problems(name, tensor_parallel, variables))
    yield from (error(what, fix) for what, fix in problems)
    if not problems and model.of_hub(name) and not model.is_cached(name, variables):
        yield warning(f"{name} is not in the cache: it is downloaded at the start", f"hf download {name}")


def _put(path: str) -> str:
    """Return what to do about a missing path."""
    if not path.endswith(".parquet"):
        return "copy it there, or correct the setting that names it"
    folder = Path(path).parent
    made = f"./run.sh data {folder.name} --to {folder.parent}, or " if folder.name in get_args(Name) else ""
    return f"{made}correct --data"


def out(facts: Facts) -> Iterator[Finding]:
    """Check that the output folder can be written, and has room for the checkpoints (verl issues 3318 and 7395)."""
    wanted, need = facts.wanted, OUT_GIB[facts.kind]
    if wanted.out is None:
        return
    folder = existing(Path(wanted.out))
    if not os.access(folder, os.W_OK):
        fix = "give another folder with --out, or get write permission for this one"
        yield error(f"{wanted.out} cannot be written", fix)
    elif lacks := lacking_checkpoints(wanted):
        yield error(*lacks)
    else:
        yield from lacking_room(str(folder), need, "free some, or give another folder with --out")
