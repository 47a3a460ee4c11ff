"""`ascend-quant kernels DEVICE`: what computes here, after a look whether it quantizes to the oracle's bytes."""

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ascend_quant.exits import DONE, FAILED, WRONG_USE, fail

if TYPE_CHECKING:
    from ascend_quant.selfcheck.operators import Checked


def kernels(
    device: Annotated[str, typer.Argument(help="npu, cuda or cpu.")],
    check: Annotated[
        bool, typer.Option("--check", help="Compare every scheme's kernels with the definition, on some shapes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
) -> None:
    """Show which matmul kernel serves each scheme on this machine's device.

    Quantizes a small weight there first. For NPUs there is ./run.sh test npu-smoke in place of --check.

    Exit status: 0; 1 if there is no such device, its bytes are not a CPU's or --check finds an error; 2 for wrong use.
    """
    from ascend_quant.convert.errors import ConvertError
    from ascend_quant.convert.quantizer import check_device, open_device
    from ascend_quant.integrations.vllm.layers.products import register_products
    from ascend_quant.kernels import NoKernels, kernels_for
    from ascend_quant.schemes import get_scheme
    from ascend_quant.selfcheck.libraries import missing_libraries
    from ascend_quant.selfcheck.operators import check_operators

    if check and device == "npu":
        fail("error: --check: on an NPU ./run.sh test npu-smoke compares every operator", WRONG_USE)
    with redirect_stdout(sys.stderr):  # vLLM logs to what is stdout at its import; ours is for the answer
        try:
            here = open_device(device)
            register_products(here.type)
            check_device(here, get_scheme("int8"))
            products = {name: serving.by for name, serving in kernels_for(here).SERVING.items()}
        except (ConvertError, NoKernels) as error:
            fail(f"error: {error}", FAILED)
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
    raise typer.Exit(FAILED if any(one.problems for one in checked) else DONE)


def _line(one: "Checked") -> str:
    """What was found of one scheme, for people."""
    if one.refused:
        return f"{one.scheme}: not here: {one.refused}"
    said = "; ".join(one.problems) or "the oracle's bits"
    return f"{one.scheme}: {len(one.shapes)} shapes, products within {one.product_error:.2g} of their norm: {said}"
