"""`run.sh demo`: training on this CPU or on one NVIDIA GPU, with BF16 and with INT8 rollouts."""

import time
from pathlib import Path
from typing import Annotated

import typer

from launch.commands.ending import FAILED, WRONG_USE, fail


def demo(
    arms: Annotated[
        str | None,
        typer.Option(
            help="Rollouts to compare, with commas: a scheme, a scheme-qat, or a scheme-uncorrected (no importance "
            "weights).  [default: bf16,int8; on cuda fp8 and int8-uncorrected too]"
        ),
    ] = None,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="One int8 and one bf16 replica in one run; beside --arms if that is given.")
    ] = False,
    steps: Annotated[int | None, typer.Option(help="Training steps of each arm.  [default: the recipe's]")] = None,
    rollout_is: Annotated[str, typer.Option(help="Importance sampling level: token or sequence.")] = "token",
    seed: Annotated[int, typer.Option(help="Seeds the weights, the data and the sampling.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the result.  [default: runs/<time>]")] = None,
    model: Annotated[str, typer.Option(help="qwen2, or on CPUs qwen3-moe.")] = "qwen2",
    device: Annotated[str, typer.Option(help="cpu, or cuda: another task and a model of 91 M on one GPU.")] = "cpu",
) -> None:
    """Train a small model with verl and vLLM, with BF16 and with INT8 rollouts, and compare."""
    from rich.console import Console

    from launch.demo import options
    from launch.demo.errors import DemoError
    from launch.demo.run import run_demo

    folder = (out or Path("runs") / time.strftime("%Y%m%d-%H%M%S")).resolve()
    try:
        chosen = options.choices(arms, hybrid, steps, rollout_is, seed, model, device)
        options.check_folder(folder)
        chosen, left_out = options.on_device(chosen, asked=arms is not None)
    except options.OptionError as error:
        fail(str(error), WRONG_USE)
    if left_out:
        typer.echo(left_out, err=True)
    try:
        run_demo(chosen, folder, Console())
    except DemoError as error:
        fail(str(error), FAILED)
