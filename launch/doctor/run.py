"""Checks of the run itself: the modules that it imports, its model and data, its output folder."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from launch import existing
from launch.doctor.checking import Finding, check, error, ok, warning
from launch.doctor.facts import GIB, Facts
from launch.environment.resolve import environment
from launch.inputs import model
from launch.inputs.checkpoints import lacking_room
from launch.inputs.rows import lacking
from launch.system.software import missing, python_path

LEAST_OUT_GIB = 1
OUT_GIB = {"none": 5, "gpu": 50, "npu": 50}
DATA = ("gsm8k", "dapo-math-17k", "addition")  # data sets of ./run.sh data, each in a folder of its name


@check("run.imports")
def imports(facts: Facts) -> Iterator[Finding]:
    wanted = facts.wanted.imports
    lacking = missing(wanted, python_path(facts.variables))
    for one in lacking:
        yield error(one.what, one.fix)
    if wanted and not lacking:
        yield ok(f"the {len(wanted)} modules that the recipe needs are installed")


@check("run.inputs")
def inputs(facts: Facts) -> Iterator[Finding]:
    wanted = facts.wanted
    if wanted.model is not None:
        yield from _model(wanted.model, wanted.tensor_parallel, environment(wanted.stack, facts.variables))
    files = [path for path in wanted.needs if path != wanted.model]
    absent = [path for path in files if not os.path.exists(path)]
    wrong = lacking(files, wanted.columns, wanted.prompt, wanted.least_rows)
    for path in absent:
        yield error(f"{path} is missing on this host", _put(path))
    for line in wrong:
        yield error(line, "correct the file (docs/models.md), or --data")
    if files and not absent + wrong:
        yield ok(f"{len(files)} files of the recipe")


def _model(name: str, tensor_parallel: int, variables: dict[str, str]) -> Iterator[Finding]:
    problems = list(model.problems(name, tensor_parallel, variables))
    yield from (error(what, fix) for what, fix in problems)
    if problems:
        return
    if model.of_hub(name) and not model.is_cached(name, variables):
        yield warning(f"{name} is not in the cache: it is downloaded at the start", f"hf download {name}")
    else:
        yield ok(name)


def _put(path: str) -> str:
    """Return what to do about a missing path."""
    if not path.endswith(".parquet"):
        return "copy it there, or correct the setting that names it"
    folder = Path(path).parent
    made = f"./run.sh data {folder.name} --to {folder.parent}, or " if folder.name in DATA else ""
    return f"{made}correct --data"


@check("run.out")
def out(facts: Facts) -> Iterator[Finding]:
    wanted, need = facts.wanted, OUT_GIB[facts.kind]
    if wanted.out is None:
        return
    folder = existing(Path(wanted.out))
    free = shutil.disk_usage(folder).free
    text = f"{free / GIB:.0f} GiB free for {wanted.out}"
    if not os.access(folder, os.W_OK):
        fix = "give another folder with --out, or get write permission for this one"
        yield error(f"{wanted.out} cannot be written", fix)
    elif lacks := lacking_room(wanted):
        yield error(*lacks)
    elif free < need * GIB:
        level = error if free < LEAST_OUT_GIB * GIB else warning
        yield level(f"{text}; {need} needed", "free some, or give another folder with --out")
    else:
        yield ok(text)
