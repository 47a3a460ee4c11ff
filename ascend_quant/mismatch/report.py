"""The report on a terminal: the figures beside the noise floor, the layers that are hurt most, what to ignore."""

from typing import Any

from rich.console import Console
from rich.table import Table

from ascend_quant.mismatch.remarks import MIB, remarks

WORST = 10
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
    if report["cache"]:
        console.print(cache(report["cache"]))
    for line in remarks(report):
        console.print(line, highlight=False, soft_wrap=True)


def figures(report: dict[str, Any]) -> Table:
    """Every figure of the quantized engine, and what the BF16 engine has against itself, ± a standard error."""
    table = Table(title="Sampled by the first engine, scored by the second")
    table.add_column("")
    both = report["mismatch"], report["noise"]
    for name, one in zip((f"{rollout(report)} / bf16", "noise: bf16 / bf16"), both, strict=True):
        table.add_column(f"{name}\n{one['tokens']} tokens\n{one['sequences']} sequences", justify="right")
    for key, text in FIGURES.items():
        table.add_row(text, *(_cell(one, one["standard_errors"], key) for one in both))
    table.add_section()
    for key, text in SEQUENCE_FIGURES.items():
        cells = [(one["sequence_weights"], (one["standard_errors"] or {}).get("sequence_weights")) for one in both]
        table.add_row(text, *(_cell(*cell, key) for cell in cells))
    return table


def _cell(figures: dict[str, Any], errors: dict[str, Any] | None, key: str) -> str:
    return f"{figures[key]:.4g}" + (f" ± {errors[key]:.1g}" if errors and key in errors else "")


def rollout(report: dict[str, Any]) -> str:
    """What the first engine is, in words."""
    plain = report["kv_cache"] == "auto" or report["emulate_cache"]
    return report["scheme"] if plain else f"{report['scheme']}, {report['kv_cache']} cache"


def cache(split: dict[str, Any]) -> Table:
    """The KL of each part, by position, ± a standard error."""
    table = Table(title="KL(bf16 || engine) a token (k3), the same tokens decoded by each, by position")
    table.add_column("positions")
    table.add_column("tokens", justify="right")
    for part in split["parts"]:
        table.add_column(part["name"], justify="right")
    for number, one in enumerate(split["parts"][0]["buckets"]):
        cells = (_short(part["buckets"][number]) for part in split["parts"])
        table.add_row(span(one) if number else "all", str(one["tokens"]), *cells)
    table.caption = "; ".join(f"{part['name']}: {part['about']}" for part in split["parts"])
    return table


def _short(bucket: dict[str, Any]) -> str:
    error = bucket["standard_error"]
    return f"{bucket['k3_kl']:.2e}" + ("" if error is None else f" ± {error:.0e}")


def span(bucket: dict[str, Any]) -> str:
    """A range of positions in words."""
    return f"from {bucket['first']}" if bucket["end"] is None else f"{bucket['first']} to {bucket['end']}"


def layers(report: dict[str, Any]) -> Table:
    """The layers with the largest errors."""
    worst = report["layers"][:WORST]
    title = f"Relative error of a layer's output: the worst {len(worst)} of {len(report['layers'])} layers"
    table = Table(title=title)
    table.add_column("layer", overflow="fold")
    for column in ("error", "x of a\nGaussian", "worst\ntoken", "of all\nsquared", "MiB more\nin BF16"):
        table.add_column(column, justify="right", no_wrap=True)
    suggested = report["suggested_ignore"]["layers"]
    for layer in worst:
        cells = [f"{layer['error']:.2%}", f"{layer['times']:.3g}", f"{layer['worst']:.2%}", f"{layer['share']:.2%}"]
        cells.append(f"{layer['extra_bytes'] / MIB:.3g}")
        table.add_row(layer["name"], *cells, style="bold red" if layer["name"] in suggested else None)
    return table
