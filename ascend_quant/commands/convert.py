"""`ascend-quant convert`: a checkpoint in another scheme, or back in BF16."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from ascend_quant.files.documents import BadDocument
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.schemes import SCHEMES, UnknownScheme
from ascend_quant.schemes.definition import FORMATS
from ascend_quant.schemes.layer_names import PatternError
from ascend_quant.terminal.exits import FAILED, fail
from ascend_quant.terminal.progress import counting

if TYPE_CHECKING:
    from ascend_quant.convert import Request, Summary

QUANTIZED = ", ".join(name for name, scheme in SCHEMES.items() if scheme.quantized)


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Folder of the Hugging Face checkpoint to convert.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Output folder, created only when the conversion is complete.")
    ],
    scheme: Annotated[str, typer.Option(help=f"Target: {QUANTIZED}; or bf16, to convert back.")],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of files converted at a time.  [default: one per core]")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Layer to leave unquantized: a name, or re:REGEX. Repeatable."),
    ] = None,
    format: Annotated[
        str | None, typer.Option(help=f"Format of OUT: {', '.join(FORMATS)}.  [default: depends on the scheme]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Quantize a BF16 checkpoint to int8, fp8 or int4, or convert one back to BF16. Resumes after an interruption.

    Exit status: 0 on success; 1 if IN cannot be converted; 2 for wrong usage.
    """
    from ascend_quant.convert.conversion import convert as carry_out

    request = requested(source, out, scheme, workers, ignore or [], format)
    errors, start = Console(stderr=True), time.perf_counter()
    try:
        with counting("converting", errors) as progress:
            summary = carry_out(request, progress)
    except (BadCheckpoint, BadDocument, PatternError, OSError) as error:
        fail(f"cannot convert: {error}", FAILED)
    seconds = time.perf_counter() - start
    if as_json:
        typer.echo(json.dumps(asdict(summary) | {"seconds": round(seconds, 3)}, indent=1))
    else:
        show(summary, seconds, Console())


def requested(
    source: Path,
    out: Path,
    scheme: str,
    workers: int | None,
    ignore: list[str],
    format: str | None,
) -> "Request":
    """Return the request; raise BadParameter for conflicting options, or folders that cannot be IN or OUT."""
    from ascend_quant.convert import Request
    from ascend_quant.convert.output import Output

    if scheme == "bf16" and (ignore or format):
        said = "--scheme bf16 dequantizes all of IN: remove --ignore and --format"
        raise typer.BadParameter(said, param_hint="'--scheme'")
    request = Request(source, out, scheme, format, tuple(ignore), workers)
    try:
        request.chosen()
    except (UnknownScheme, BadCheckpoint) as error:
        raise typer.BadParameter(str(error), param_hint="'--scheme'") from error
    if not source.is_dir():
        raise typer.BadParameter(f"{source} is not a folder; give a local Hugging Face checkpoint", param_hint="'IN'")
    try:
        Output(out).check(source)
    except (BadCheckpoint, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="'OUT'") from error
    return request


def show(summary: "Summary", seconds: float, console: Console) -> None:
    """Print the result."""
    table = Table("weights", "count", title=f"{summary.scheme}, {summary.format}")
    for kind, count in sorted(summary.weights.items(), key=lambda item: -item[1]):
        table.add_row(kind if kind.endswith("quantized") else f"not quantized: {kind}", f"{count:,}")
    if summary.weights:
        console.print(table)
    sizes = f"{decimal(summary.bytes_in)} to {decimal(summary.bytes_out)} in {seconds:,.1f} s"
    before = f", {summary.resumed} of them by an earlier run" if summary.resumed else ""
    files = "1 file" if summary.shards == 1 else f"{summary.shards} files"
    for line in (f"{sizes}; {files}{before}", f"written: {summary.out}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
