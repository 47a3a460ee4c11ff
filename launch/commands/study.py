"""`run.sh study`: does a policy with INT8 rollouts learn what one with BF16 rollouts learns, and at which rates?"""

import json
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.exits import FAILED, WRONG_USE, fail


def study(
    device: Annotated[str, typer.Option(help="cpu, or cuda: a model of 91 M on one GPU.")] = "cpu",
    arms: Annotated[
        str | None,
        typer.Option(help="Rollouts, with commas: bf16, int8, int8-uncorrected, int8-qat, fp8.  [default: all]"),
    ] = None,
    rates: Annotated[str | None, typer.Option(help="Learning rates.  [default: 1e-4,1e-5,1e-6,5e-8]")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Each has its own start, prompts and sampling.  [default: 0,1]")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps of a cell.  [default: the recipe's]")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells that are trained at once.")] = 1,
    out: Annotated[
        str, typer.Option(help="Folder of the study; cells that are in it are not trained again.")
    ] = "study",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Train every arm at every rate from every seed, with verl and vLLM, and compare them with BF16 rollouts.

    A study that is stopped goes on where it was: give the same --out. Writes study.json, study.md and study.png there.
    """
    from rich.console import Console

    from launch.demo import DemoError
    from launch.demo.run import OptionError, progress
    from launch.errors import LaunchError
    from launch.plan.job import must_be_said
    from launch.processes import end_as_after_ctrl_c
    from launch.study import cells, report
    from launch.study.grid import grid, on_device

    folder, console = Path(out).resolve(), Console(stderr=as_json)
    try:
        must_be_said({"--out": out})
        chosen = grid(device, arms, rates, seeds, steps)
        chosen, left_out = on_device(chosen, asked=arms is not None)
        cells.check_folder(chosen, folder)
        folder.mkdir(parents=True, exist_ok=True)
    except (LaunchError, OptionError) as error:
        fail(str(error), WRONG_USE)
    except OSError as error:
        fail(f"--out {folder}: {error.strerror}", WRONG_USE)
    if left_out:
        typer.echo(left_out, err=True)
    end_as_after_ctrl_c()
    try:
        with progress(console) as bars:
            cells.train_all(chosen, folder, jobs, bars)
    except DemoError as error:
        fail(f"{error}\nwhat is done is kept: the same command goes on from there", FAILED)
    finally:
        if found := cells.records(chosen, folder):
            report.write(found, folder)
    if as_json:
        typer.echo(json.dumps(report.whole(found)))
        return
    console.print("\n".join([*report.markdown(found), "", *report.answers(found)]), soft_wrap=True, highlight=False)
    console.print(f"written: {folder / 'study.json'}, study.md and study.png", soft_wrap=True, highlight=False)
