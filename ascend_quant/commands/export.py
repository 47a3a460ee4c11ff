"""`ascend-quant export`: what a trainer has saved, as a checkpoint that engines load."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer


def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="a run's checkpoint folder, or one step of it: verl's or Megatron's")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="new folder; appears when all of it is written")],
    scheme: Annotated[str, typer.Option(help="what the weights become: a name of `convert`; bf16: as they are")],
    hf_model: Annotated[
        Path | None, typer.Option(help="folder with config.json and tokenizer  [default: beside the checkpoint]")
    ] = None,
    keep_bf16: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="put the BF16 model there, and leave it")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="a layer that stays BF16, as in `convert`. Repeatable")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="processes of `convert`  [default: one a core]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Megatron's torch_dist (also after FP8 training), or verl's FSDP shards, to BF16, to a quantized checkpoint.

    Exit status: 0, 1 if the checkpoint cannot be exported, 2 for wrong usage.
    """
    from rich.console import Console

    from ascend_quant.convert import ConvertError
    from ascend_quant.export import ExportError
    from ascend_quant.profile.rules import ProfileError
    from ascend_quant.schemes import UnknownScheme, get_scheme

    errors = Console(stderr=True)
    try:
        get_scheme(scheme)
        for folder in filter(None, (out, keep_bf16)):
            _check_new(folder)
        if keep_bf16 and scheme == "bf16":
            raise typer.BadParameter("--scheme bf16 writes OUT in BF16: leave it out", param_hint="'--keep-bf16'")
    except UnknownScheme as error:
        raise typer.BadParameter(str(error), param_hint="'--scheme'") from error
    try:
        done = _exported(checkpoint, out, scheme, hf_model, keep_bf16, tuple(ignore or ()), workers, errors)
    except (ExportError, ConvertError, ProfileError, OSError) as error:  # OSError: a full disk, say
        errors.print(f"cannot export: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    typer.echo(json.dumps(done, indent=1) if as_json else f"{done['kind']} -> {done['scheme']}: {done['out']}")


def _check_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise typer.BadParameter(f"{folder} exists and is no empty folder")


def _exported(
    checkpoint: Path,
    out: Path,
    scheme: str,
    hf_model: Path | None,
    keep_bf16: Path | None,
    ignore: tuple[str, ...],
    workers: int | None,
    console: Any,
) -> dict[str, Any]:
    """BF16 first, where the checkpoint is not that already; then `convert`, unless BF16 is what was asked for."""
    from ascend_quant.convert import Request, convert
    from ascend_quant.export import ExportError, find, write_bf16

    trained = find(checkpoint)
    done = {"kind": trained.kind, "scheme": scheme, "out": str(out)}
    plain = scheme == "bf16"
    if plain and trained.kind == "hugging-face":
        raise ExportError(f"{trained.folder} is the BF16 model already: there is nothing to do")
    with ExitStack() as stack:
        bf16 = trained.folder
        if trained.kind != "hugging-face":
            out.parent.mkdir(parents=True, exist_ok=True)
            beside = tempfile.TemporaryDirectory(prefix=f"{out.name}.bf16-", dir=out.parent, ignore_cleanup_errors=True)
            bf16 = keep_bf16 or Path(stack.enter_context(beside)) / "model"
            with _bar(console, f"{trained.kind} to bf16", "parameters") as told:
                write_bf16(trained, bf16, hf_model, told)
        if plain:
            bf16.rename(out)
            return done
        with _bar(console, f"bf16 to {scheme}", "bytes") as told:
            summary = convert(Request(bf16, out, scheme, ignore=ignore, workers=workers), told)
    return {**done, "converted": asdict(summary)}


@contextmanager
def _bar(console: Any, what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time left; what it gives is told how many of how many units are done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
