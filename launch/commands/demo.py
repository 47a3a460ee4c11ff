"""`run.sh demo` and `run.sh smoke`: training on this CPU; does this installation work here?"""

import os
import time
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.exits import DONE, FAILED, WRONG_USE, fail
from ascend_quant.whole_file import why_no_file

DEFAULT = Path("smoke.json")


class Model(str, Enum):
    """Of the demo's models, the architecture."""

    dense = "qwen2"
    experts = "qwen3-moe"


def demo(
    arms: Annotated[
        str,
        typer.Option(
            help="Rollouts to compare, with commas: a scheme, a scheme-qat, or a scheme-uncorrected (no importance "
            "weights)."
        ),
    ] = "bf16,int8",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps of each arm.  [default: the recipe's]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seeds the weights, the data and the sampling.")] = 0,
    out: Annotated[str | None, typer.Option(help="Folder of the result.  [default: runs/<time>]")] = None,
    model: Annotated[Model, typer.Option(help="Its architecture, of 0.3 M parameters.")] = Model.dense,
) -> None:
    """Train a small model with verl and vLLM on this CPU, with BF16 and with INT8 rollouts, and compare."""
    from rich.console import Console

    from launch.demo import DemoError
    from launch.demo.run import OptionError, check_folder, choices, run_demo
    from launch.errors import LaunchError
    from launch.plan.job import must_be_said
    from launch.processes import end_as_after_ctrl_c
    from launch.stacks import STACK_VARIABLE

    if (stack := os.environ.get(STACK_VARIABLE, "cpu")) != "cpu":
        fail(
            f"this image is for {stack}, and the demo trains on CPUs: use the cpu image; here, ./run.sh smoke",
            WRONG_USE,
        )
    folder = Path(time.strftime("runs/%Y%m%d-%H%M%S") if out is None else out).resolve()
    try:
        must_be_said({"--out": out})
        chosen = choices(arms, steps, seed, model.value)
        check_folder(folder)
    except (LaunchError, OptionError) as error:
        fail(str(error), WRONG_USE)
    end_as_after_ctrl_c()
    try:
        run_demo(chosen, folder, Console())
    except DemoError as error:
        fail(str(error), FAILED)


def smoke(
    out: Annotated[
        Path | None,
        typer.Option(help=f"Write the JSON there.  [default: {DEFAULT}, or print it where that cannot be written]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON; write a file with --out alone.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(help="A part: manifest, doctor, operators, refit, generate or train; repeatable.  [default: all]"),
    ] = None,
) -> None:
    """Look at this machine, try the device's kernels, refit a real engine, train a few steps; one table, one JSON file.

    Tests the stack named by ASCEND_QUANT_STACK (set in our images; default: cpu).

    Exit status: 0 where all that applies passed; 1 where a part failed; 2 for wrong use.
    """
    from rich.console import Console

    from launch.processes import end_as_after_ctrl_c
    from launch.smoke import run
    from launch.stacks import STACK_VARIABLE, all_pins

    stack, stacks = os.environ.get(STACK_VARIABLE) or "cpu", all_pins()
    if stack not in stacks:
        fail(f"{STACK_VARIABLE}={stack}: there is no such stack, only {', '.join(stacks)}", WRONG_USE)
    if unknown := [name for name in only or [] if name not in run.NAMES]:
        fail(f"--only {unknown[0]}: there is no such part; choose from {', '.join(run.NAMES)}", WRONG_USE)
    printed = as_json or (out is None and not os.access(".", os.W_OK))
    if out is None and not printed:
        out = DEFAULT
    if out is not None and (said := why_no_file(out)):
        fail(f"--out {said}", WRONG_USE)
    if out is not None and not os.access(out.absolute().parent, os.W_OK):
        fail(f"--out {out}: {out.absolute().parent} cannot be written", WRONG_USE)
    console = Console(stderr=printed)
    end_as_after_ctrl_c()
    content = run.smoke(stack, stacks[stack].devices, steps, only or [], console)
    if printed:
        typer.echo(run.as_text(content), nl=False)
    if out is not None:
        try:
            out.write_text(run.as_text(content))
        except OSError as error:
            fail(f"--out {out}: cannot be written: {error.strerror}", FAILED)
        console.print(f"written: {out.absolute()}", soft_wrap=True, highlight=False)
    raise typer.Exit(DONE if content["ok"] else FAILED)
