"""`ascend-quant advise MODEL --device DEVICE`: does INT8 pay here?"""

import json
from dataclasses import asdict, replace
from enum import Enum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ascend_quant.advise import AdviceError, roofline
from ascend_quant.advise.model import Workload, is_recipe, read_model, read_recipe
from ascend_quant.advise.roofline import DEVICES, GIB, Estimate
from ascend_quant.terminal.exits import WRONG_USE, fail

Device = Enum("Device", {name: name for name in DEVICES}, type=str)
ASSUMED = """Assumed: embedding, lm head, routers, norms and attention stay BF16; activations and graphs take no memory;
all sequences start together and are equally long, those that do not fit wait; vLLM 0.23 with captured graphs."""


def advise(
    place: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Model: a folder, a config.json or a hub id; or a recipe, by its name or .yaml file."
        ),
    ],
    device: Annotated[Device, typer.Option(case_sensitive=False, help="Device type; on A3, each die is a device.")],
    model: Annotated[str | None, typer.Option(help="Folder of the recipe's model, if it is not on the hub.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor-parallel size.  [default: 1]")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences per engine.  [default: 64]")] = None,
    inputs: Annotated[int | None, typer.Option("--in", min=1, help="Tokens per prompt.  [default: 256]")] = None,
    outputs: Annotated[int | None, typer.Option("--out", min=1, help="Tokens per answer.  [default: 512]")] = None,
    memory: Annotated[
        float | None, typer.Option(min=0.01, max=1, help="vLLM's gpu_memory_utilization.  [default: 0.9]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Estimate memory and tokens/s of a rollout in BF16 and INT8. No device is needed."""
    given = {"tp": tp, "batch": batch, "inputs": inputs, "outputs": outputs, "memory": memory}
    try:
        place, workload = read_recipe(place) if is_recipe(place) else (place, Workload())
        workload = replace(workload, **{name: value for name, value in given.items() if value is not None})
        said, found = roofline.advise(read_model(model or place), device.value, workload)
    except AdviceError as error:
        fail(f"error: {error}", WRONG_USE)
    if as_json:
        rows = {name: asdict(each) for name, each in found.items()}
        print(json.dumps({"workload": asdict(workload), "verdict": said, "rows": rows, "gains": roofline.gains(found)}))
        return
    sequences = f"{workload.batch} sequences of {workload.inputs} + {workload.outputs} tokens"
    print(f"{model or place}, {sequences} on {workload.tp} x {device.value}\n\n{said}\n", flush=True)
    Console().print(_table(found))
    print(f"\n{ASSUMED}")


def _table(found: dict[str, Estimate]) -> Table:
    """Print a row for each way to store weights and cache."""
    gains = roofline.gains(found)
    table = Table("weights", "GiB", "GiB a sequence", "fit", "ms a step", "tokens/s", "of BF16", box=None)
    for name, each in found.items():
        cells = [name, f"{each.weights / GIB:.2f}", f"{each.sequence / GIB:.3f}", str(each.fit)]
        if each.decode:
            step = 1e3 * sum(each.decode.values())
            cells += [f"{step:.2f}", f"{each.tokens_per_second:.0f}", f"{gains[name]:.2f}" if gains else ""]
        table.add_row(*cells)
    return table
