"""`ascend-quant demo`, which `run.sh demo` starts, too: real RL with quantized rollouts on a laptop."""

import os
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from ascend_quant.processes.environment import STACK_VARIABLE
from ascend_quant.terminal.exits import FAILED, WRONG_USE, fail

NEEDED = ("verl", "vllm", "transformers", "pandas")


def demo(
    arms: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated rollouts to compare: SCHEME, SCHEME-uncorrected (no importance weights), "
            "SCHEME-qat (int4 schemes), or int8-exact.  [default: bf16,int8]"
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Compare int8-exact, whose trainer computes the engine's policy bit for bit, with int8 and bf16.",
        ),
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps per arm.  [default: the recipe's]")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of the weights, the data and the sampling.")
    ] = 0,
    out: Annotated[str | None, typer.Option(help="Output folder.  [default: runs/<time>]")] = None,
    model: Annotated[
        Literal["qwen2", "qwen3-moe"], typer.Option(help="Architecture of the model, which has 0.3 M parameters.")
    ] = "qwen2",
) -> None:
    """Train a small model with verl and vLLM on this CPU, with BF16 and with INT8 rollouts, and compare.

    Exit status: 0 on success; 1 if a training failed; 2 for wrong usage.
    """
    from rich.console import Console

    if (stack := os.environ.get(STACK_VARIABLE, "cpu")) != "cpu":
        fail(f"this image is for {stack}, and the demo trains on CPUs: use the cpu image; here, smoke", WRONG_USE)
    names = arms_of(arms, exact)
    if lacking := [name for name in NEEDED if find_spec(name) is None]:
        fail(f"this Python lacks {', '.join(lacking)}: pip install 'ascend-quant[cpu]' (docs/install.md)", WRONG_USE)

    from ascend_quant.demo import DemoError
    from ascend_quant.demo.report import run_demo
    from ascend_quant.demo.training import Choices, load_recipe
    from ascend_quant.processes.tree import end_as_after_ctrl_c

    folder = Path(time.strftime("runs/%Y%m%d-%H%M%S") if out is None else out).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"--out {folder} cannot be created: {error.strerror}; give another folder", WRONG_USE)
    if other := next(folder.iterdir(), None):
        fail(f"--out {folder} is not empty, it contains {other.name}; give a new folder", WRONG_USE)
    chosen = Choices(names, steps or load_recipe()["trainer"]["total_training_steps"], seed, model)
    end_as_after_ctrl_c()
    try:
        run_demo(chosen, folder, Console())
    except DemoError as error:
        fail(str(error), FAILED)


def arms_of(arms: str | None, exact: bool) -> tuple[str, ...]:
    """Return the arms that --arms names, or those of --exact; exit if both are given, or a name is not an arm."""
    from ascend_quant.demo.training import ARMS, BESIDE_EXACT

    if exact and arms is not None:
        fail(
            f"--exact with --arms {arms!r}: --exact is short for --arms {','.join(BESIDE_EXACT)}; remove one of them",
            WRONG_USE,
        )
    if exact:
        return BESIDE_EXACT
    names = tuple(name.strip() for name in ("bf16,int8" if arms is None else arms).split(","))
    if unknown := [name for name in names if name not in ARMS]:
        fail(f"--arms {unknown[0]!r}: choose from {', '.join(ARMS)}", WRONG_USE)
    if len(set(names)) < len(names):
        fail(f"--arms {arms!r} names an arm twice", WRONG_USE)
    return names
