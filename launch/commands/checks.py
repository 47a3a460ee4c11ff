"""`run.sh doctor` (static checks) and `run.sh smoke` (a test run): test whether this installation works."""

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ascend_quant.files.whole_file import why_no_file, write_whole
from ascend_quant.terminal.exits import DONE, FAILED, NOT_REACHED, WRONG_USE, fail
from launch.commands.recipe import Changes, ClusterOption, of_data

if TYPE_CHECKING:
    from rich.console import Console

    from launch.doctor.checking import Report
    from launch.recipes import Recipe
    from launch.smoke.setting import Setting

DEFAULT = Path("smoke.json")


def doctor(
    cluster: ClusterOption = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --recipe, run the checks on the nodes of this Ray cluster.",
        ),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Also check what this recipe needs.")] = None,
    changes: Changes = None,
    model: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    data: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    out: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check for problems that would stop a run, and print a fix for each. Nothing is changed.

    Exit status: 0 if there are no errors (warnings are allowed); 1 if an error was found; 2 for wrong usage.
    """
    from rich.console import Console

    from ascend_quant.terminal.progress import waiting
    from launch import LaunchError
    from launch.doctor.checking import show
    from launch.recipes import load

    if ray is not None and cluster is not None:
        fail("--ray with --cluster: the hosts are those of that Ray cluster; remove --cluster", WRONG_USE)
    of_recipe = {"--ray": ray, "--set": changes, "--model": model, "--data": data, "--out": out}
    if recipe is None and (given := [name for name, value in of_recipe.items() if value]):
        fail(f"{given[0]} works only with --recipe: add it", WRONG_USE)
    try:
        made, folder = of_data(changes, data)
        wanted = load(recipe, made) if recipe is not None else None
        with waiting("examining"):
            if ray and wanted is not None:
                report = examine_nodes(ray, wanted, model, folder, out)
            else:
                report = examine_hosts(cluster, wanted, model, folder, out)
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    if as_json:
        typer.echo(report.as_json())
    else:
        show(report, Console())
    raise typer.Exit(report.exit_code)


def examine_hosts(
    cluster: str | None, recipe: "Recipe | None", model: str | None, data: str | None, out: str | None
) -> "Report":
    """Return the findings on all hosts of an inventory, or on this machine."""
    from launch.cluster.inventory import load, this_machine
    from launch.doctor.hosts import examine
    from launch.plan.job import places
    from launch.plan.make import locals_of, new_run

    inventory = load(cluster) if cluster is not None else None
    if recipe is None:
        return examine(inventory)
    hosts = inventory or this_machine(recipe.stack)
    return examine(inventory, recipe, places(recipe, hosts, new_run(), locals_of(hosts)[0], model, data, out))


def examine_nodes(address: str, recipe: "Recipe", model: str | None, data: str | None, out: str | None) -> "Report":
    """Return the findings on the nodes of a Ray cluster that already exists."""
    from launch.plan.make import new_run
    from launch.ray_jobs.cluster import connect
    from launch.ray_jobs.nodes import examine
    from launch.ray_jobs.plan import make, places

    plan = make(recipe, places(recipe, model, data, out), new_run(), shell=os.environ)
    return examine(connect(address), plan, f"{plan.run}-doctor")


def smoke(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the JSON to this file after each part; an unfinished run in it is continued.  "
            f"[default: {DEFAULT}, or stdout if that cannot be written]"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON; a file is written only with --out.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 3,
    minutes: Annotated[float, typer.Option(min=1, help="Time limit; running the same command again continues.")] = 60,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only this part, even if it already has a result: doctor, train, or a probe or group of "
            "ascend-quant smoke (such as engine). Repeatable.  [default: all]"
        ),
    ] = None,
    read: Annotated[
        list[Path] | None,
        typer.Option(
            "--read",
            help="Print the results in this JSON file of a run on NPUs, one line per probe, and run nothing. "
            "Repeatable, to combine runs on one device and on several.",
        ),
    ] = None,
) -> None:
    """Test this machine: doctor, operators, three training steps and a refitted engine. The results go into one JSON.

    ASCEND_QUANT_STACK names the stack to test (set in our images; default: cpu).

    Exit status: 0 if all applicable parts passed; 1 if a part failed; 2 for wrong usage; 3 if time ran out. With
    --read: 0 if every probe passed; 1 if a probe failed; 3 if none failed but some have not run.
    """
    if read:
        _read(read, as_json)
    printed = as_json or (out is None and not os.access(".", os.W_OK))
    if out is None and not printed:
        out = DEFAULT
    if out is not None and (said := why_no_file(out)):
        fail(f"--out {said}", WRONG_USE)
    _try(_setting(steps, minutes), only or [], out, printed)


def _setting(steps: int, minutes: float) -> "Setting":
    """Return the smoke test's setting for the stack of the environment, with a new temporary folder."""
    from launch.recipes.stacks import STACK_VARIABLE, all_pins
    from launch.smoke.setting import Setting

    stack, stacks = os.environ.get(STACK_VARIABLE) or "cpu", all_pins()
    if stack not in stacks:
        fail(f"{STACK_VARIABLE}={stack} is not a stack; choose from {', '.join(stacks)}", WRONG_USE)
    folder, ends = Path(tempfile.mkdtemp(prefix="aq-smoke-")), time.monotonic() + 60 * minutes
    return Setting(stack, stacks[stack].devices, folder, steps, ends)


def _try(setting: "Setting", wanted: list[str], out: Path | None, printed: bool) -> NoReturn:
    """Run the requested parts of the smoke test, with JSON in a file, on stdout, or both."""
    from rich.console import Console

    from ascend_quant.smoke.probes import UnknownProbe, is_in
    from ascend_quant.smoke.results import as_text
    from launch.smoke.parts import ALONE, smoke
    from launch.system.processes import end_as_after_ctrl_c

    console = Console(stderr=printed)
    before = _earlier(out, setting, wanted, console) if out is not None else None
    end_as_after_ctrl_c()

    def keep(content: dict[str, Any]) -> None:
        if out is not None:
            try:
                write_whole(out, as_text(content))
            except OSError as error:
                fail(f"--out {out}: cannot be written: {error.strerror}", FAILED)

    try:
        content = smoke(setting, wanted, console, before, keep)
    except UnknownProbe as why:
        fail(f"--only: {why}; and {', '.join(ALONE)}", WRONG_USE)
    if printed:
        typer.echo(as_text(content), nl=False)
    if out is not None:
        console.print(f"written: {out.absolute()}", soft_wrap=True, highlight=False)
    if content["ok"]:
        shutil.rmtree(setting.folder)
    else:
        console.print(f"logs: {setting.folder}", soft_wrap=True)
    left = [name for name in content["left"] if not wanted or any(is_in(name, one) for one in wanted)]
    if left:
        console.print(
            f"the time limit is reached; run the same command again to continue with {', '.join(left)}", soft_wrap=True
        )
    raise typer.Exit(FAILED if not content["ok"] else NOT_REACHED if left else DONE)


def _read(files: list[Path], as_json: bool) -> NoReturn:
    """Print the result of each probe in the files."""
    from rich.console import Console

    from ascend_quant.smoke.results import FAILED as FAILED_PROBE
    from ascend_quant.smoke.results import OK
    from launch import LaunchError
    from launch.smoke import reading

    console = Console(stderr=as_json)
    try:
        made = [reading.read(file) for file in files]
    except LaunchError as why:
        fail(f"--read {why}", WRONG_USE)
    found = reading.rows(made)
    for name, status, seen in found:
        console.print(f"{name}: {status}{seen and '; '}{seen}", soft_wrap=True, highlight=False, markup=False)
    if as_json:
        probes = [{"name": name, "status": status, "seen": seen} for name, status, seen in found]
        typer.echo(json.dumps({"files": [one.about for one in made], "probes": probes}, indent=1))
    statuses = {status for _, status, _ in found}
    raise typer.Exit(FAILED if FAILED_PROBE in statuses else DONE if statuses == {OK} else NOT_REACHED)


def _earlier(out: Path, setting: "Setting", wanted: list[str], console: "Console") -> dict[str, Any] | None:
    """Load the results of an earlier run to continue; None if the file is new."""
    from launch.smoke.parts import differences

    if not out.is_file():
        return None
    try:
        content = json.loads(out.read_text())
        different = differences(content, setting)
        whole = not content["left"] and not wanted
    except (ValueError, KeyError, TypeError, AttributeError):
        fail(f"--out {out} exists and is not a JSON file of this command; give another name", WRONG_USE)
    if different or whole:
        why = f"it was written for {', '.join(different)}" if different else "all its parts have results"
        console.print(f"starting {out} again from the beginning: {why}", soft_wrap=True)
        return None
    console.print(f"continuing {out}, started {content['started']}: {len(content['probes'])} results", soft_wrap=True)
    return content
