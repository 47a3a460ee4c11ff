"""`ascend-quant check-engine START THEN`: does a real engine, refitted, serve what a fresh one serves?"""

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.exits import DONE, FAILED, WRONG_USE, fail
from ascend_quant.whole_file import why_no_file, write_whole

logger = logging.getLogger(__name__)


def check_engine(
    start: Annotated[Path, typer.Argument(help="Folder of the BF16 checkpoint that the engine starts from.")],
    then: Annotated[
        Path, typer.Argument(help="Folder of another one of the same model, say of a training step later.")
    ],
    graphs: Annotated[bool, typer.Option("--graphs", help="Capture graphs, as vLLM does by default: slower.")] = False,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="As in vLLM, for each engine.  [default: vLLM's]")
    ] = None,
    tensor_parallel_size: Annotated[
        int, typer.Option(min=1, help="As in vLLM: on so many devices, each rank beside a fresh engine's.")
    ] = 1,
    expert_parallel: Annotated[
        bool, typer.Option("--expert-parallel", help="Experts are dealt out whole among them.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write what was found there, as JSON.")] = None,
) -> None:
    """Check a refit on this device: weights against the reference, tokens against a fresh engine's.

    Starts an int8 engine from START and refits it to THEN in buckets. Both are checkpoints in safetensors.

    Exit status: 0; 1 if anything differs or an engine fails; 2 for wrong use.
    """
    from ascend_quant.selfcheck import given

    try:
        given.check(start, then, gpu_memory_utilization)
    except given.WrongUse as error:
        fail(str(error), WRONG_USE)
    if out is not None and (said := why_no_file(out)):
        fail(f"--out {said}", WRONG_USE)

    if expert_parallel and tensor_parallel_size == 1:
        fail("--expert-parallel deals experts out among ranks: add --tensor-parallel-size, 2 or more", WRONG_USE)

    from ascend_quant.selfcheck import engine

    try:
        wanted = engine.Engines(graphs, gpu_memory_utilization, tensor_parallel_size, expert_parallel)
        found = engine.check_engine(start, then, wanted)
        if out is not None:
            write_whole(out, json.dumps(found, indent=1) + "\n")
    except Exception as error:  # an engine's own words, of whatever kind
        logger.debug("an engine of check-engine failed", exc_info=True)
        fail(f"error: {type(error).__name__}: {' '.join(str(error).split()):.1500}", FAILED)
    problems = [*found["refit"]["problems"], *found["generate"]["problems"]]
    receipt = found["refit"]["receipt"]
    typer.echo(f"refit: {receipt['tensors']} tensors, {receipt['milliseconds']:.1f} ms, digest {receipt['digest']}")
    typer.echo(f"generate: {engine.PROMPTS} x {engine.TOKENS} tokens beside a fresh engine's")
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    raise typer.Exit(FAILED if problems else DONE)
