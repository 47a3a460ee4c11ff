"""`ascend-quant kernels DEVICE`: what computes here, after a look whether it quantizes to the oracle's bytes."""

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ascend_quant.selfcheck.operators import Checked


def kernels(
    device: Annotated[str, typer.Argument(help="npu, cuda or cpu.")],
    check: Annotated[
        bool, typer.Option("--check", help="Compare every scheme's kernels with the definition, on some shapes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
) -> None:
    """What multiplies with each scheme's weights on a device of this machine.

    Quantizes a small weight there first: other bytes than a CPU's, or no such device, end the command with 1. So does
    anything that --check finds; for NPUs there is ./run.sh test npu-smoke.
    """
    from ascend_quant.convert.devices import check_device, open_device
    from ascend_quant.convert.errors import ConvertError
    from ascend_quant.kernels import NoKernels, kernels_for
    from ascend_quant.schemes import get_scheme
    from ascend_quant.selfcheck.libraries import missing_libraries
    from ascend_quant.selfcheck.operators import check_operators

    if check and device == "npu":
        typer.echo("error: --check: on an NPU ./run.sh test npu-smoke compares every operator", err=True)
        raise typer.Exit(2)
    with redirect_stdout(sys.stderr):  # vLLM logs to what is stdout at its import; ours is for the answer
        try:
            here = open_device(device)
            check_device(here, get_scheme("int8"))
            products = {name: serving.by for name, serving in kernels_for(here).SERVING.items()}
        except (ConvertError, NoKernels) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error
        missing = missing_libraries()
        checked = check_operators(here) if check else []
    if as_json:
        more = {"checked": [asdict(one) for one in checked]} if check else {}
        typer.echo(json.dumps({"device": device, "products": products, "missing": missing, **more}))
    else:
        for name, by in products.items():
            typer.echo(f"{name}: {by}")
        for one in checked:
            typer.echo(_line(one))
        for file, names in missing.items():
            typer.echo(f"warning: {file} needs {', '.join(names)}, which is not here: vLLM runs without it", err=True)
    raise typer.Exit(int(any(one.problems for one in checked)))


def _line(one: "Checked") -> str:
    """What was found of one scheme, for people."""
    if one.refused:
        return f"{one.scheme}: not here: {one.refused}"
    said = "; ".join(one.problems) or "the oracle's bits"
    return f"{one.scheme}: {len(one.shapes)} shapes, products within {one.product_error:.2g} of their norm: {said}"
