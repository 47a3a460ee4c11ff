"""`ascend-quant advise MODEL --device DEV --tp N --batch B --in I --out O`: will INT8 pay here?"""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ascend_quant.advise import AdviceError, assumptions, steps
from ascend_quant.advise.configs import read_config
from ascend_quant.advise.devices import DATA_SHEETS, get_device
from ascend_quant.advise.rollouts import Workload
from ascend_quant.advise.roofline import EFFICIENCY
from ascend_quant.advise.shapes import shape_of
from ascend_quant.advise.verdicts import Advice
from ascend_quant.advise.verdicts import advise as advice_on


def advise(
    model: Annotated[str, typer.Argument(help="Folder or config.json of a model, or its id on the Hugging Face hub.")],
    device: Annotated[str, typer.Option(help=f"One of {', '.join(DATA_SHEETS)}; of an A3, one die is a device.")],
    tp: Annotated[int, typer.Option(help="Devices that share one engine.")] = 1,
    batch: Annotated[int, typer.Option(help="Sequences in flight in one engine.")] = 64,
    inputs: Annotated[int, typer.Option("--in", help="Tokens of a prompt.")] = 256,
    outputs: Annotated[int, typer.Option("--out", help="Tokens of an answer.")] = 512,
    bandwidth: Annotated[float | None, typer.Option(help="TB/s of a large copy on one device.")] = None,
    bf16_rate: Annotated[float | None, typer.Option(help="TFLOP/s of large BF16 products on one device.")] = None,
    int8_rate: Annotated[float | None, typer.Option(help="TOP/s of large INT8 products.")] = None,
    fp8_rate: Annotated[float | None, typer.Option(help="TFLOP/s of large FP8 products.")] = None,
    efficiency: Annotated[float, typer.Option(help="Fraction of the bandwidth that kernels reach.")] = EFFICIENCY,
    measured_bf16: Annotated[float | None, typer.Option(help="Your engine's tokens/s, to compare.")] = None,
    measured_int8: Annotated[float | None, typer.Option(help="The same with int8.")] = None,
    measured_fp8: Annotated[float | None, typer.Option(help="The same with fp8.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
) -> None:
    """Expected tokens/s of a rollout in bf16, int8 and fp8, where the time goes, and why: a roofline."""
    try:
        shape = shape_of(read_config(model))
        workload = Workload(tp, batch, inputs, outputs)
        rates = {"bf16": bf16_rate, "int8": int8_rate, "fp8": fp8_rate}
        rates = {scheme: rate * 1e12 for scheme, rate in rates.items() if rate is not None}
        about = get_device(device.upper(), None if bandwidth is None else bandwidth * 1e12, rates)
        measured = {"bf16": measured_bf16, "int8": measured_int8, "fp8": measured_fp8}
        advice = advice_on(shape, about, workload, efficiency, measured)
    except AdviceError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    assumed = assumptions.assumptions(shape, about, workload, efficiency)
    if as_json:
        facts = {"model": model, "shape": asdict(shape), "device": asdict(about), "workload": asdict(workload)}
        typer.echo(json.dumps(facts | asdict(advice) | {"assumptions": assumed}, indent=1))
    else:
        show(advice, f"{model}: {batch} sequences of {inputs} + {outputs} tokens on {tp} x {about.name}", workload)
        typer.echo("\nAssumed:\n" + "\n".join(f"* {line}" for line in assumed))


def show(advice: Advice, title: str, workload: Workload) -> None:
    """The table, and below it the sentences."""
    console = Console(highlight=False)
    console.print(table(advice, title, workload))
    for scheme, why in advice.absent.items():
        typer.echo(f"{scheme}: {why}.")
    for line in (*advice.verdicts.values(), *advice.experts, *advice.measured):
        typer.echo(line)


def table(advice: Advice, title: str, workload: Workload) -> Table:
    """A row a part, a column a scheme: milliseconds of a decode step, and the share of all time, prompts included."""
    found = Table("ms a decode step (of all time)", *advice.rollouts, title=title, title_justify="left")
    for column in found.columns[1:]:
        column.justify = "right"
    shares = {scheme: rollout.shares(workload) for scheme, rollout in advice.rollouts.items()}
    for part in steps.PARTS:
        if any(part in rollout.step for rollout in advice.rollouts.values()):
            cells = [
                f"{r.step.get(part, 0) * 1e3:.2f} ({shares[s].get(part, 0):.0%})" for s, r in advice.rollouts.items()
            ]
            found.add_row(part, *cells)
    found.add_section()
    rollouts = advice.rollouts.values()
    found.add_row("one decode step, ms", *(f"{sum(r.step.values()) * 1e3:.2f}" for r in rollouts))
    found.add_row("all prompts, s", *(f"{sum(r.prefill.values()):.2f}" for r in rollouts))
    found.add_row("sequences side by side", *(str(r.concurrent) for r in rollouts))
    found.add_row("tokens/s of the engine", *(f"{r.tokens_per_second:.0f}" for r in rollouts))
    found.add_row("of bf16", *(f"{advice.speedups[s]:.2f}" if s in advice.speedups else "" for s in advice.rollouts))
    return found
