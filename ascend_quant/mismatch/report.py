"""The report on a terminal: metrics next to the noise floor, the KL by position, and the worst layers."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from ascend_quant.integrations.verl.metrics.estimators import THRESHOLD

WORST = 10  # layers in the table
MIB = 1 << 20
LEAST = 0.8  # fraction of a batch that importance weights should leave, as in verl's warning
FIGURES = {
    "k3_kl": "KL per token (k3), nats",
    "k1_kl": "KL per token (k1), nats",
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
    console.print(positions(report))
    if report["layers"]:
        console.print(layers(report))
    for line in remarks(report):
        console.print(line, highlight=False, soft_wrap=True)


def policies(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each policy's metrics by display name: the rollout's, those of its parts, the noise."""
    scheme, cache = report["scheme"], report["kv_cache"]
    if cache == "auto":
        return {scheme: report["mismatch"], "noise (bf16)": report["noise"]}
    names = {"weights": f"{scheme}, bf16 cache", "cache": f"bf16, {cache} cache"}
    parts = {names[part]: figures for part, figures in report["parts"].items()}
    return {f"{scheme}, {cache} cache": report["mismatch"], **parts, "noise (bf16)": report["noise"]}


def figures(report: dict[str, Any]) -> Table:
    """Print all metrics of each policy against bf16, with standard errors."""
    table = Table(title="Each policy's own tokens, sampled by decoding, scored by the bf16 engine")
    table.add_column("")
    found = policies(report)
    for name, one in found.items():
        table.add_column(f"{name}\n{one['tokens']} tokens\n{one['sequences']} sequences", justify="right")
    for key, text in FIGURES.items():
        table.add_row(text, *(_cell(one[key], one["standard_errors"].get(key)) for one in found.values()))
    table.add_section()
    for key, text in SEQUENCE_FIGURES.items():
        table.add_row(text, *(_cell(one["sequence_weights"][key]) for one in found.values()))
    return table


def positions(report: dict[str, Any]) -> Table:
    """Print the KL of each policy by position, with standard errors."""
    table = Table(title="KL per token (k3) by position, counted from the start of the prompt")
    table.add_column("positions")
    found = policies(report)
    for name in found:
        table.add_column(name, justify="right")
    for first, words in spans(found).items():
        held = [{one["first"]: one for one in figures["positions"]}.get(first) for figures in found.values()]
        table.add_row(words, *("" if one is None else _cell(one["k3_kl"], one["standard_error"]) for one in held))
    return table


def spans(found: dict[str, dict[str, Any]]) -> dict[int, str]:
    """Return descriptions of the position ranges in which any policy has tokens, by first position."""
    ranges = {one["first"]: one["end"] for figures in found.values() for one in figures["positions"]}
    return {
        first: f"from {first}" if (end := ranges[first]) is None else f"{first} to {end}" for first in sorted(ranges)
    }


def layers(report: dict[str, Any]) -> Table:
    """Print the layers with the largest errors."""
    worst = report["layers"][:WORST]
    table = Table(title=f"Relative error of a layer's output: the worst {len(worst)} of {len(report['layers'])} layers")
    table.add_column("layer", overflow="fold")
    for column in ("error", "worst\ntoken", "of all\nsquared", "MiB more\nin BF16"):
        table.add_column(column, justify="right", no_wrap=True)
    for layer in worst:
        cells = [f"{layer[key]:.2%}" for key in ("error", "worst", "share")]
        table.add_row(layer["name"], *cells, f"{layer['extra_bytes'] / MIB:.3g}")
    return table


def remarks(report: dict[str, Any]) -> Iterator[str]:
    """Print remarks that follow from the metrics."""
    found, noise = report["mismatch"], report["noise"]["k3_kl"]
    if noise > 0:
        yield (
            f"KL (k3) is {found['k3_kl'] / noise:.3g} times the noise floor: {found['k3_kl']:.3g}, noise floor "
            f"{noise:.3g}."
        )
    if report["prompts_left_out"]:
        yield f"{report['prompts_left_out']} prompts were left out (--tokens {report['tokens']})."
    token, sequence = found["ess"], found["sequence_weights"]["ess"]
    yield (
        f"Truncated importance sampling, clipped at {THRESHOLD:g}, leaves {token:.3g} of a batch with one weight per "
        f"token, and {sequence:.3g} with one weight per sequence of this length."
    )
    if token < LEAST:
        yield (
            f"Below {LEAST:g} importance weights help little: `ignore` the worst layers, choose a more precise scheme, "
            "or train for this one (QAT for int4, exact training for int8)."
        )
    elif sequence < LEAST:
        yield f"Below {LEAST:g} sequence weights waste the batch: set algorithm.rollout_correction.rollout_is=token."


def _cell(value: float, error: float | None = None) -> str:
    return f"{value:.4g}" + ("" if error is None else f" ± {error:.1g}")
