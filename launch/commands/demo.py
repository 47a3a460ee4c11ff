"""`run.sh demo`: training on this CPU."""

import os
import time
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.exits import FAILED, WRONG_USE, fail


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
