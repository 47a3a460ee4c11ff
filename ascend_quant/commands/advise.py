"""`ascend-quant advise MODEL --device DEV --tp N --batch B --in I --out O`: will INT8 pay here?"""

from typing import Annotated

import typer

from ascend_quant.advise import AdviceError
from ascend_quant.advise.configs import read_config
from ascend_quant.advise.devices import DATA_SHEETS, get_device
from ascend_quant.advise.report import report
from ascend_quant.advise.syncs import Route
from ascend_quant.advise.workloads import MEMORY, Workload
from ascend_quant.exits import WRONG_USE, fail


def advise(
    model: Annotated[str, typer.Argument(help="Folder or config.json of a model, or its id on the Hugging Face hub.")],
    device: Annotated[
        str, typer.Option(help=f"One of {', '.join(DATA_SHEETS)}; each die of an A3 counts as one device.")
    ],
    tp: Annotated[int, typer.Option(help="Devices that share each layer.")] = 1,
    dp: Annotated[int, typer.Option(help="Groups of these in one engine, which share the experts.")] = 1,
    expert_parallel: Annotated[bool, typer.Option("--expert-parallel", help="Each device has whole experts.")] = False,
    batch: Annotated[int, typer.Option(help="Sequences in flight in one engine.")] = 64,
    inputs: Annotated[int, typer.Option("--in", help="Tokens of a prompt.")] = 256,
    outputs: Annotated[int, typer.Option("--out", help="Tokens of an answer.")] = 512,
    memory: Annotated[float, typer.Option(help="Share of a device's memory given to the engine.")] = MEMORY,
    limit: Annotated[int | None, typer.Option("--max-num-seqs", help="Sequences that vLLM lets run at once.")] = None,
    eager: Annotated[bool, typer.Option("--eager", help="No captured graphs (enforce_eager).")] = False,
    launch_us: Annotated[
        float | None, typer.Option(help="Microseconds in which your host starts a kernel; for --eager.")
    ] = None,
    bandwidth: Annotated[float | None, typer.Option(help="Measured copy bandwidth of one device, in TB/s.")] = None,
    bf16_rate: Annotated[float | None, typer.Option(help="TFLOP/s of large BF16 products on one device.")] = None,
    int8_rate: Annotated[float | None, typer.Option(help="TOP/s of large INT8 products.")] = None,
    fp8_rate: Annotated[float | None, typer.Option(help="TFLOP/s of large FP8 products.")] = None,
    measured_bf16: Annotated[
        float | None, typer.Option(help="Measured bf16 tokens/s of your engine, shown beside the estimate.")
    ] = None,
    measured_int8: Annotated[float | None, typer.Option(help="The same with int8.")] = None,
    measured_fp8: Annotated[float | None, typer.Option(help="The same with fp8.")] = None,
    sync_from: Annotated[
        int | None, typer.Option(help="Devices that train: also estimate a weight sync from them.  [default: none]")
    ] = None,
    wire: Annotated[
        float | None,
        typer.Option(help="GB/s from a trainer's host to engines on other devices.  [default: they are on the same]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
) -> None:
    """Estimate a rollout's tokens/s and memory in bf16, int8 and fp8, and what bounds it. Needs no device."""
    try:
        launch = None if launch_us is None else launch_us / 1e6
        workload = Workload(tp, batch, inputs, outputs, dp, expert_parallel, memory, eager, launch, limit)
        rates = {"bf16": bf16_rate, "int8": int8_rate, "fp8": fp8_rate}
        rates = {scheme: rate * 1e12 for scheme, rate in rates.items() if rate is not None}
        about = get_device(device.upper(), None if bandwidth is None else bandwidth * 1e12, rates)
        measured = {"bf16": measured_bf16, "int8": measured_int8, "fp8": measured_fp8}
        if wire is not None and sync_from is None:
            raise AdviceError(f"--wire {wire:g} without --sync-from: give the devices that train too")
        route = None if sync_from is None else Route(sync_from, tp, None if wire is None else wire * 1e9)
        report(model, read_config(model), about, workload, measured, as_json, route)
    except AdviceError as error:
        fail(f"error: {error}", WRONG_USE)
