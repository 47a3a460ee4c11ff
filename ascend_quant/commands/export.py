"""`ascend-quant export`: convert a trainer's checkpoint to one that engines load."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascend_quant.terminal.exits import FAILED, fail

if TYPE_CHECKING:
    from ascend_quant.export import Trained


def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="Checkpoint folder of a verl or Megatron run (its newest step is exported), or of one step."
        ),
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Output folder, created only when the export is complete.")
    ],
    scheme: Annotated[str, typer.Option(help="Scheme of the exported weights: one of `convert`'s, or bf16.")],
    hf_model: Annotated[
        Path | None, typer.Option(help="Folder with config.json and tokenizer.  [default: next to the checkpoint]")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Layer to leave in BF16, as in `convert`. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Turn a training checkpoint (Megatron torch_dist, verl FSDP shards) into a Hugging Face model, BF16 or quantized.

    Pickles are read without executing code. The config.json must be the trained model's. Names, shapes and dtypes are
    checked against it, but shapes cannot distinguish 4 heads of size 32 from 8 heads of size 16.

    Exit status: 0 on success; 1 if the checkpoint cannot be exported; 2 for wrong usage.
    """
    from rich.console import Console

    from ascend_quant.convert.output import Output
    from ascend_quant.files.documents import BadDocument
    from ascend_quant.profile.checkpoints import BadCheckpoint
    from ascend_quant.schemes import UnknownScheme, get_scheme
    from ascend_quant.schemes.layer_names import PatternError

    errors = Console(stderr=True)
    if nowhere := [folder for folder in (checkpoint, hf_model) if folder is not None and not folder.is_dir()]:
        raise typer.BadParameter(f"{nowhere[0]} is not a folder")
    try:
        get_scheme(scheme)
        Output(out).check_new()
    except (UnknownScheme, BadCheckpoint, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    out = out.resolve()
    if scheme == "bf16" and ignore:
        raise typer.BadParameter("--scheme bf16 quantizes nothing: remove --ignore", param_hint="'--scheme'")
    try:
        trained = _exported(checkpoint, out, scheme, hf_model, tuple(ignore or ()), errors)
    except (BadCheckpoint, BadDocument, PatternError, OSError) as error:  # OSError: such as a full disk
        fail(f"cannot export: {error}", FAILED)
    if as_json:
        about = {"kind": trained.kind, "checkpoint": str(trained.folder), "step": trained.step}
        typer.echo(json.dumps(about | {"scheme": scheme, "out": str(out)}, indent=1))
    else:
        step = "" if trained.step is None else f", step {trained.step}"
        typer.echo(f"{trained.kind}{step} -> {scheme}: {out}")


def _exported(
    checkpoint: Path, out: Path, scheme: str, hf_model: Path | None, ignore: tuple[str, ...], console: Any
) -> "Trained":
    """Export to BF16 unless the checkpoint already is; then run `convert`, unless BF16 was requested.

    Returns:
        The checkpoint that was found.
    """
    from ascend_quant.convert import Request, convert
    from ascend_quant.convert.output import Output
    from ascend_quant.export import find, write_bf16
    from ascend_quant.profile.checkpoints import BadCheckpoint
    from ascend_quant.terminal.progress import counting

    trained = find(checkpoint)
    if trained.kind == "hugging-face":
        if scheme == "bf16":
            raise BadCheckpoint(f"{trained.folder} already is the BF16 model: there is nothing to export")
        with counting(f"bf16 to {scheme}", console) as progress:
            convert(Request(trained.folder, out, scheme, ignore=ignore), progress)
        return trained
    partial = Output(out).partial
    if partial.exists():
        raise BadCheckpoint(f"{partial} was left behind by a killed command; remove it")
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.bf16-", dir=out.parent) as beside:  # on the same disk
        bf16 = Path(beside) / "model"
        with counting(f"{trained.kind} to bf16", console) as progress:
            write_bf16(trained, bf16, hf_model, progress)
        if scheme == "bf16":
            bf16.rename(out)
            return trained
        try:
            with counting(f"bf16 to {scheme}", console) as progress:
                convert(Request(bf16, out, scheme, ignore=ignore), progress)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)  # its input is about to be deleted, so it cannot be resumed
            raise
    return trained
