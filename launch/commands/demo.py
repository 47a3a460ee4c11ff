"""`run.sh demo` and `run.sh smoke`: training on this CPU or on one NVIDIA GPU; does this installation work here?"""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.exits import DONE, FAILED, WRONG_USE, fail
from ascend_quant.whole_file import why_no_file

DEFAULT = Path("smoke.json")


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
    out: Annotated[str | None, typer.Option(help="Folder of the result.  [default: runs/<time>]")] = None,
    model: Annotated[str, typer.Option(help="qwen2, or on CPUs qwen3-moe.")] = "qwen2",
    device: Annotated[str, typer.Option(help="cpu, or cuda: another task and a model of 91 M on one GPU.")] = "cpu",
    kv_cache: Annotated[
        str, typer.Option(help="KV cache of the quantized rollouts: auto (BF16), int8 (GPUs) or fp8.")
    ] = "auto",
) -> None:
    """Train a small model with verl and vLLM, with BF16 and with INT8 rollouts, and compare."""
    from rich.console import Console

    from launch.demo import DemoError
    from launch.demo.run import OptionError, check_folder, choices, on_device, run_demo
    from launch.errors import LaunchError
    from launch.plan.job import must_be_said
    from launch.processes import end_as_after_ctrl_c

    folder = Path(time.strftime("runs/%Y%m%d-%H%M%S") if out is None else out).resolve()
    try:
        must_be_said({"--out": out})
        chosen = choices(arms, hybrid, steps, rollout_is, seed, model, device, kv_cache)
        chosen, left_out = on_device(chosen, asked=arms is not None)
        check_folder(folder)
    except (LaunchError, OptionError) as error:
        fail(str(error), WRONG_USE)
    if left_out:
        typer.echo(left_out, err=True)
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
