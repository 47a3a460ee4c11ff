"""`ascend-quant kernels DEVICE`: what computes here, after a look whether it quantizes to the oracle's bytes."""

import json
from typing import Annotated

import typer


def kernels(
    device: Annotated[str, typer.Argument(help="npu, cuda or cpu.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
) -> None:
    """What multiplies with each scheme's weights on a device of this machine.

    Quantizes a small weight there first: other bytes than a CPU's, or no such device, end the command with 1.
    """
    from ascend_quant.convert.devices import check_device, open_device
    from ascend_quant.convert.errors import ConvertError
    from ascend_quant.kernels import NoKernels, kernels_for
    from ascend_quant.schemes import get_scheme

    try:
        here = open_device(device)
        check_device(here, get_scheme("int8"))
        products = {name: serving.by for name, serving in kernels_for(here).SERVING.items()}
    except (ConvertError, NoKernels) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps({"device": device, "products": products}))
        return
    for name, by in products.items():
        typer.echo(f"{name}: {by}")
