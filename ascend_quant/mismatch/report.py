"""The report on a terminal: the figures beside the noise floor, the layers that are hurt most, what to ignore."""

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

WORST = 10
MIB = 1 << 20
FIGURES = {
    "k3_kl": "KL a token (k3), nats",
    "k1_kl": "KL a token (k1), nats",
    "mean_abs": "|delta logprob|: mean",
    "p50_abs": "  50 % are below",
    "p90_abs": "  90 %",
    "p99_abs": "  99 %",
    "max_abs": "  largest",
    "weight_mean": "token weights: clipped mean",
    "weight_largest": "  largest, unclipped",
    "ess": "  effective sample size",
    "clipped": "  clipped fraction",
}
SEQUENCE_FIGURES = {
    "mean": "sequence weights: clipped mean",
    "largest": "  largest, unclipped",
    "ess": "  effective sample size",
    "clipped": "  clipped fraction",
}


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report of `measure.measure`."""
    machine = report["machine"]
    made = f"{report['model']} on {machine['device']}, vLLM {machine['vllm']}, torch {machine['torch']}"
    console.print(made, highlight=False, soft_wrap=True)
    console.print(figures(report))
    if report["layers"]:
        console.print(layers(report))
    for line in remarks(report):
        console.print(line, highlight=False, soft_wrap=True)


def figures(report: dict[str, Any]) -> Table:
    """Every figure of the quantized engine, and what the BF16 engine has against itself."""
    table = Table(title="Sampled by the first engine, scored by the second")
    table.add_column("")
    both = report["mismatch"], report["noise"]
    for name, one in zip((f"{report['scheme']} / bf16", "noise: bf16 / bf16"), both, strict=True):
        table.add_column(f"{name}\n{one['tokens']} tokens\n{one['sequences']} sequences", justify="right")
    for key, text in FIGURES.items():
        table.add_row(text, *(f"{one[key]:.4g}" for one in both))
    table.add_section()
    for key, text in SEQUENCE_FIGURES.items():
        table.add_row(text, *(f"{one['sequence_weights'][key]:.4g}" for one in both))
    return table


def layers(report: dict[str, Any]) -> Table:
    """The layers with the largest errors."""
    worst = report["layers"][:WORST]
    title = f"Relative error of a layer's output: the worst {len(worst)} of {len(report['layers'])} layers"
    table = Table(title=title)
    table.add_column("layer", overflow="fold")
    for column in ("error", "worst\ntoken", "of all\nsquared", "MiB more\nin BF16"):
        table.add_column(column, justify="right", no_wrap=True)
    suggested = report["suggested_ignore"]["layers"]
    for layer in worst:
        numbers = layer["error"], layer["worst"], layer["share"]
        cells = [f"{number:.2%}" for number in numbers] + [f"{layer['extra_bytes'] / MIB:.3g}"]
        table.add_row(layer["name"], *cells, style="bold red" if layer["name"] in suggested else None)
    return table


def remarks(report: dict[str, Any]) -> Iterator[str]:
    """What follows, in sentences."""
    found, noise = report["mismatch"]["k3_kl"], report["noise"]["k3_kl"]
    if noise > 0:
        yield f"KL (k3) is {found / noise:.3g} times the noise floor: {found:.3g} to {noise:.3g}."
    if report["prompts_left_out"]:
        yield f"{report['prompts_left_out']} prompts were left out (--tokens {report['tokens']})."
    suggestion = report["suggested_ignore"]
    if suggestion["layers"]:
        share, cost = suggestion["share"], suggestion["extra_bytes"] / MIB
        yield f"Suggested ignore ({share:.0%} of all squared error, {cost:.3g} MiB more in BF16):"
        yield json.dumps(suggestion["layers"])
    elif report["layers"]:
        yield "No layer stands out: nothing to ignore."
    if report["layers"] and report["profile"]:
        yield "The layers' errors are the scheme's own, without the profile's factors."
