"""`ascend-quant check-engine START THEN`: does a real engine, refitted, serve what a fresh one serves?"""

import json
from pathlib import Path
from typing import Annotated

import typer

FAILED, MISUSED = 1, 2


def check_engine(
    start: Annotated[Path, typer.Argument(help="Folder of the BF16 checkpoint that the engine starts from.")],
    then: Annotated[
        Path, typer.Argument(help="Folder of another one of the same model, say of a training step later.")
    ],
    graphs: Annotated[bool, typer.Option("--graphs", help="Capture graphs, as vLLM does by default: slower.")] = False,
    gpu_memory_utilization: Annotated[float | None, typer.Option(help="Of the engines.  [default: vLLM's]")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write what was found there.")] = None,
) -> None:
    """Start an int8 engine, refit it in buckets; compare its bytes with the oracle's, its tokens with a fresh one's.

    On one device, from two checkpoints in safetensors. Ends with 0, with 1 if anything differs, with 2 for wrong use.
    """
    for folder in (start, then):
        if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
            typer.echo(f"{folder}: no config.json with .safetensors files there", err=True)
            raise typer.Exit(MISUSED)
    if json_file is not None and not json_file.absolute().parent.is_dir():
        typer.echo(f"--json {json_file}: there is no folder {json_file.absolute().parent}", err=True)
        raise typer.Exit(MISUSED)

    from ascend_quant.selfcheck import engine

    found = engine.check_engine(start, then, graphs, gpu_memory_utilization)
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1) + "\n")
    problems = [*found["refit"]["problems"], *found["generate"]["problems"]]
    receipt = found["refit"]["receipt"]
    typer.echo(f"refit: {receipt['tensors']} tensors, {receipt['milliseconds']:.1f} ms, digest {receipt['digest']}")
    typer.echo(f"generate: {engine.PROMPTS} x {engine.TOKENS} tokens beside a fresh engine's")
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    raise typer.Exit(FAILED if problems else 0)
