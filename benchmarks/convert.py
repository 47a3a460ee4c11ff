"""./run.sh bench convert FOLDER: how fast checkpoints are converted, beside a plain copy of the same files.

Both read files that the system has just read, and end when what they wrote is on the disk (fsync). Rounds begin with
another method each; a method's ratio is that of the copy in the same round. Embeddings and the head are left out: to
convert them is to copy them. With FOLDER on tmpfs no disk is waited for.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from safetensors.torch import save_file

from ascend_quant.convert import Request, convert
from ascend_quant.schemes import SCHEMES
from benchmarks.models import MODELS, Model, get_model
from benchmarks.report import console, table_of, write_run
from benchmarks.tasks import check_layers, choices
from benchmarks.timing import rotated, summary

COPY = "copy"
QUANTIZED = tuple(name for name, scheme in SCHEMES.items() if scheme.quantized)

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    folder: Annotated[Path, typer.Argument(help="Folder for temporary files.")],
    model: Annotated[str, typer.Option(help=f"Model whose shapes are used: {', '.join(MODELS)}.")] = "qwen2.5-7b",
    layers: Annotated[int, typer.Option(min=1, help="Number of layers, with one file each.")] = 4,
    schemes: Annotated[str, typer.Option(help="Comma-separated schemes.")] = "int8,fp8,fp8_tensor,fp8_block,int4_g128",
    rounds: Annotated[int, typer.Option(min=1, help="Number of times that each method is timed.")] = 5,
    out: Annotated[Path | None, typer.Option(help="File for all samples.")] = None,
) -> None:
    """Measure conversions on all cores. Exit status: 0; 2 for wrong use."""
    names = choices("--schemes", schemes, QUANTIZED)
    choices("--model", model, tuple(MODELS))
    check_layers(model, layers)
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is no folder", param_hint="FOLDER")
    scratch = folder / f"convert-benchmark-{os.getpid()}"
    scratch.mkdir()
    try:
        source, size = write_model(get_model(model).cut(layers), scratch / "in")
        seconds = measure(methods_of(source, scratch / "out", names), scratch / "out", rounds)
    finally:
        shutil.rmtree(scratch)
    result = {"model": model, "layers": layers, "bytes": size, "rows": rows(seconds, size)}
    show(result)
    if out is not None:
        write_run(out, "benchmarks.convert", "cpu", result)


def write_model(model: Model, folder: Path) -> tuple[Path, int]:
    """Write a checkpoint of random BF16 weights, a file for each layer; returns its folder and size, still cached."""
    folder.mkdir()
    model.write_config(folder)
    generator, places = torch.Generator().manual_seed(0), {}
    for layer in range(model.layers):
        file = f"model-{layer + 1:05}-of-{model.layers:05}.safetensors"
        shapes = {name: shape for name, shape in model.shapes().items() if name.startswith(f"model.layers.{layer}.")}
        tensors = {name: torch.empty(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
        for tensor in tensors.values():
            tensor.normal_(0, 0.02, generator=generator)
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    os.sync()
    return folder, sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def methods_of(source: Path, out: Path, schemes: list[str]) -> dict[str, Callable[[], object]]:
    """Return the methods by name; each leaves `out` behind."""
    methods: dict[str, Callable[[], object]] = {COPY: lambda: copy(source, out)}
    for scheme in schemes:
        methods[scheme] = partial(convert, Request(source, out, scheme))
    return methods


def copy(source: Path, out: Path) -> None:
    """Copy files one after the other, each on the disk (fsync) before the next begins."""
    out.mkdir()
    for path in sorted(source.iterdir()):
        shutil.copyfile(path, out / path.name)
        with (out / path.name).open("rb+") as file:
            os.fsync(file.fileno())


def measure(methods: dict[str, Callable[[], object]], out: Path, rounds: int) -> dict[str, list[float]]:
    """Measure the seconds of each method in each round; one round before them is not counted."""
    seconds = {name: [] for name in methods}
    for turn in range(-1, rounds):
        console().print(f"round {turn + 1} of {rounds}")
        for name in rotated(list(methods), max(turn, 0)):
            start = time.perf_counter()
            methods[name]()
            took = time.perf_counter() - start
            shutil.rmtree(out)
            os.sync()
            if turn >= 0:
                seconds[name].append(took)
    return seconds


def rows(seconds: dict[str, list[float]], size: int) -> list[dict]:
    """Return one row a method: its seconds, its throughput in input bytes, and both of a copy's, round by round."""
    return [
        {
            "method": name,
            "seconds": summary(samples),
            "samples": samples,
            "bytes_per_second": size / median(samples),
            "of_a_copy": median(copied / own for copied, own in zip(seconds[COPY], samples, strict=True)),
        }
        for name, samples in seconds.items()
    ]


def show(result: dict) -> None:
    """Print a table, one method a line."""
    title = f"{result['layers']} layers of {result['model']}, {result['bytes'] / 1e9:.2f} GB"
    table = table_of(title, ("method",), ("GB/s of input", "seconds", "of a copy"))
    for row in result["rows"]:
        took = "{low:.2f} - {high:.2f}".format(**row["seconds"])
        table.add_row(row["method"], f"{row['bytes_per_second'] / 1e9:.2f}", took, f"{row['of_a_copy']:.2f}")
    console().print(table)


if __name__ == "__main__":
    app()
