"""An advice as tables and sentences for a reader, or as figures for a program."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from ascend_quant.advise import steps, syncs
from ascend_quant.advise.assumptions import assumptions
from ascend_quant.advise.contexts import AtContext
from ascend_quant.advise.devices import GIB, Device
from ascend_quant.advise.families import shape_of
from ascend_quant.advise.rollouts import Phase
from ascend_quant.advise.syncs import Route
from ascend_quant.advise.verdicts import Advice, advise
from ascend_quant.advise.workloads import Workload

WIDTH = 120  # at least, or cells are cut


def report(
    model: str,
    config: Mapping[str, Any],
    device: Device,
    workload: Workload,
    measured: Mapping[str, float | None],
    as_json: bool,
    route: Route | None = None,
) -> None:
    """Print it.

    Args:
        model: what the user calls it.
        config: its config.json.
        measured: the user's own tokens/s by scheme, or None.
        route: of a weight sync that is estimated too.

    Raises:
        AdviceError: of `shape_of` and `advise`; nothing was printed then.
    """
    shape = shape_of(config)
    advice = advise(shape, device, workload, measured)
    assumed = assumptions(shape, device, workload)
    found = {} if route is None else syncs.syncs(shape, device, route)
    if as_json:
        facts = {"model": model, "parameters": shape.parameters(), "shape": asdict(shape), "device": asdict(device)}
        if route is not None:
            each = {send: {**asdict(one), "together": one.together} for send, one in found.items()}
            facts["sync"] = {**asdict(route), "sends": each, "assumptions": syncs.assumed(device, route)}
        print(json.dumps(facts | {"workload": asdict(workload), **asdict(advice), "assumptions": assumed}, indent=1))
        return
    devices = f"{workload.tp} x {device.name}" if workload.dp == 1 else f"{workload.dp} x {workload.tp} x {device.name}"
    told = f"{workload.batch} sequences of {workload.inputs} + {workload.outputs} tokens on {devices}"
    print(f"{model} ({shape.parameters() / 1e9:.1f} B parameters): {told}", flush=True)
    console = Console(width=max(Console().width, WIDTH))
    for table in (memories(advice, workload), speeds(advice, workload), by_context(advice), parts(advice)):
        console.print(table)
    lines = [f"{name}: {why}." for name, why in advice.absent.items()]
    lines += [*advice.verdicts.values(), *advice.measured, "", "Assumed:", *(f"* {line}" for line in assumed)]
    if route is not None:
        console.print(weight_syncs(found))
        lines += [f"* {line}" for line in syncs.assumed(device, route)]
    for line in lines:
        print(line)


def weight_syncs(found: Mapping[str, syncs.Sync]) -> Table:
    """A row for what is sent: GB of one sync, milliseconds of its hops."""
    hops = [hop for hop in syncs.HOPS if any(hop in one.seconds for one in found.values())]
    table = _table("a weight sync, ms", "GB", *hops, "together")
    for send, one in found.items():
        cells = (f"{one.seconds[hop] * 1e3:.0f}" if hop in one.seconds else "" for hop in hops)
        table.add_row(send, f"{one.bytes / 1e9:.2f}", *cells, f"{'> ' if one.unknown else ''}{one.together * 1e3:.0f}")
    return table


def memories(advice: Advice, workload: Workload) -> Table:
    """A row a scheme and cache: GiB on one device, and the sequences that fit in the engine."""
    found = _table(
        "GiB on a device", "quantized", "scales", "rest in BF16", "left", "cache of a sequence", "sequences fit"
    )
    for name, each in advice.rollouts.items():
        held = each.memory
        sizes = held.quantized, held.scales, held.rest, held.usable - held.weights
        cells = (f"{size / GIB:.2f}" for size in (*sizes, held.sequence))
        found.add_row(name, *cells, str(held.fits * workload.dp))
    return found


def speeds(advice: Advice, workload: Workload) -> Table:
    """A row a scheme and cache: what it does, and what bounds decoding and prompts."""
    unknown = workload.eager and workload.launch is None  # then times are the device's alone
    figures = "at once", "waves", "ms a step", "tokens/s", "of bf16"
    found = _table("", *figures, "decoding: most of it", "prompts: most of it")
    for name, each in advice.rollouts.items():
        found.add_row(
            name,
            str(each.concurrent),
            str(each.waves),
            f"{'> ' if unknown else ''}{each.step.seconds * 1e3:.2f}",
            f"{'< ' if unknown else ''}{each.tokens_per_second:.0f}",
            f"{advice.speedups[name]:.2f}" if name in advice.speedups and not unknown else "",
            bound(each.step),
            bound(each.prefill),
        )
    return found


def by_context(advice: Advice) -> Table:
    """A row a scheme and cache, a column a context."""
    lengths = [each.context for each in next(iter(advice.contexts.values()))]
    found = _table("tokens a sequence", *map(str, lengths))
    found.title = "A decode step: ms (its floor), sequences / how many would fit"
    for name, contexts in advice.contexts.items():
        found.add_row(name, *map(_at_context, contexts))
    return found


def _at_context(each: AtContext) -> str:
    if each.seconds is None or each.floor is None:
        return "does not fit"
    return f"{each.seconds * 1e3:.2f} ({each.floor * 1e3:.2f}) {each.sequences}/{each.fits}"


def _table(first: str, *others: str) -> Table:
    """Its first column to the left, the others to the right."""
    table = Table(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def bound(phase: Phase) -> str:
    """What most of a step's time goes to, and how much of it."""
    return f"{phase.bound} {phase.causes[phase.bound] / phase.seconds:.0%}"


def parts(advice: Advice) -> Table:
    """A row a part, a column a scheme with its BF16 cache: milliseconds of a decode step, and the share of all time."""
    shown = {name: each for name, each in advice.rollouts.items() if "cache" not in name} or advice.rollouts
    found = _table("ms a decode step (of all time, prompts too)", *shown)
    shares = {name: each.shares() for name, each in shown.items()}
    for part in steps.PARTS:
        if any(part in each.step.parts for each in shown.values()):
            cells = (
                f"{each.step.parts.get(part, 0) * 1e3:.2f} ({shares[n].get(part, 0):.0%})" for n, each in shown.items()
            )
            found.add_row(part, *cells)
    found.add_section()
    found.add_row("all prompts, s", *(f"{each.prefills * each.prefill.seconds:.2f}" for each in shown.values()))
    return found
