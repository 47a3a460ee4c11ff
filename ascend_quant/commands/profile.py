"""`ascend-quant profile`: compare a BF16 and a quantized checkpoint and write the smoothing profile between them."""

import json
from enum import Enum
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from ascend_quant.files.documents import BadDocument
from ascend_quant.files.whole_file import why_no_file
from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint, find
from ascend_quant.terminal.exits import FAILED, fail
from ascend_quant.terminal.progress import Bars

if TYPE_CHECKING:
    from ascend_quant.profile.compare import Comparison

SHOWN = 20  # parameters in the table of those that are not reproduced


class Function(str, Enum):
    """The dtype of the quantized model: FlashRL's function names whose profiles this project reads."""

    int8 = "int8"


def profile(
    quantized: Annotated[str, typer.Option("-q", "--quantized", help="Quantized model: a folder, or a hub id.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Output file; a .pt file has FlashRL's layout.")],
    model: Annotated[str, typer.Option("-m", "--model", help="BF16 model: a folder, or a hub id.")],
    fn: Annotated[
        Function, typer.Option("--fn", help="Quantization function, by FlashRL's name; fp8 needs no profile.")
    ] = Function.int8,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compare a BF16 model with its quantized version, and save the scales and smoothing factors between them.

    Exit status: 0 on success; 1 if the two models cannot be compared; 2 for wrong usage.
    """
    from ascend_quant.profile.files import files_of, save

    files = [output] if output.suffix == ".pt" or not output.name else [output, *files_of(output)]
    if said := next(filter(None, map(why_no_file, files)), None):
        raise typer.BadParameter(said, param_hint="'-o'")
    _must_be_outside(files, [model, quantized])
    reference, other = _found(model, "'-m'"), _found(quantized, "'-q'")
    errors = Console(stderr=True)
    try:
        result = compared(reference, other, errors)
        files = save(result.profile, output)
    except (BadCheckpoint, BadDocument, OSError) as error:
        fail(f"cannot profile: {error}", FAILED)
    if as_json:
        typer.echo(json.dumps(summary(result, files), indent=1))
    else:
        show(result, files, Console())


def _must_be_outside(files: list[Path], models: list[str]) -> None:
    """Raise BadParameter if a file would be inside a model's folder, since weights and config have such names."""
    for folder in (Path(model).expanduser().resolve() for model in models):
        for file in files:
            if file.resolve().is_relative_to(folder):
                raise typer.BadParameter(
                    f"{file} is inside the model folder {folder}; write the profile elsewhere", param_hint="'-o'"
                )


def _found(model: str, option: str) -> Path:
    """Return the folder of a model; raise BadParameter if there is none."""
    try:
        return find(model)
    except BadCheckpoint as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def compared(model: Path, quantized: Path, console: Console) -> "Comparison":
    """Compare the models, with a progress bar."""
    from ascend_quant.profile.compare import compare_int8
    from ascend_quant.profile.w8a8 import read_w8a8

    reference = Checkpoint(model)
    with Bars(console=console, transient=True) as bar:
        task = bar.add_task("comparing", total=len(reference.names))
        return compare_int8(reference, read_w8a8(Checkpoint(quantized)), lambda name: bar.advance(task))


def summary(result: "Comparison", files: list[Path]) -> dict[str, object]:
    """Return the result for `--json`."""
    return {
        "files": [str(file) for file in files],
        "scheme": result.profile.scheme,
        "parameters": dict(result.kinds),
        **result.profile.notes,
    }


def show(result: "Comparison", files: list[Path], console: Console) -> None:
    """Print the result."""
    from ascend_quant.profile.arithmetic import of_refits

    table = Table("parameters", "count", title=f"{result.profile.scheme} profile")
    for kind, count in result.kinds.most_common():
        table.add_row(kind, f"{count:,}")
    console.print(table)
    for arithmetic in dict.fromkeys((result.profile.arithmetic, of_refits(result.profile.arithmetic))):
        equal = [one.equal[arithmetic] for one in result.reproduced]
        figures = f"{min(equal):.3%} at worst, {median_low(equal):.3%} at the median"
        console.print(f"codes equal with frozen scales, {arithmetic} arithmetic: {figures}", soft_wrap=True)
    if poor := result.poor:
        table = Table("not reproduced", "codes equal")
        for name, equal in list(poor.items())[:SHOWN]:
            table.add_row(name, f"{equal:.2%}")
        console.print(table)
        if len(poor) > SHOWN:
            console.print(f"and {len(poor) - SHOWN} more, in the profile's notes")
    for line in (*result.profile.notes.get("remarks", ()), f"written: {', '.join(map(str, files))}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
