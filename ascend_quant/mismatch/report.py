"""The report on a terminal and as a PNG: figures beside the noise floor, the KL by position, the worst layers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ascend_quant.estimators import THRESHOLD

WORST, DRAWN = 10, 30  # layers, in the table and in the picture
BINS = 61  # odd: one around zero
MIB = 1 << 20
LEAST = 0.8  # of a batch that importance weights should leave, as verl's adapter warns
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
    console.print(positions(report))
    if report["layers"]:
        console.print(layers(report))
    for line in remarks(report):
        console.print(line, highlight=False, soft_wrap=True)


def policies(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The figures of each policy, by its name for people: the rollout's, those of its parts, the noise."""
    scheme, cache = report["scheme"], report["kv_cache"]
    if cache == "auto":
        return {scheme: report["mismatch"], "noise (bf16)": report["noise"]}
    names = {"weights": f"{scheme}, bf16 cache", "cache": f"bf16, {cache} cache"}
    parts = {names[part]: figures for part, figures in report["parts"].items()}
    return {f"{scheme}, {cache} cache": report["mismatch"], **parts, "noise (bf16)": report["noise"]}


def figures(report: dict[str, Any]) -> Table:
    """Every figure of each policy against bf16, ± a standard error."""
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
    """The KL of each policy by position, ± a standard error."""
    table = Table(title="KL a token (k3) by position: the tokens before it, the prompt's too")
    table.add_column("positions")
    found = policies(report)
    for name in found:
        table.add_column(name, justify="right")
    for first, words in spans(found).items():
        held = [{one["first"]: one for one in figures["positions"]}.get(first) for figures in found.values()]
        table.add_row(words, *("" if one is None else _cell(one["k3_kl"], one["standard_error"]) for one in held))
    return table


def spans(found: dict[str, dict[str, Any]]) -> dict[int, str]:
    """The ranges of positions that any policy has tokens in, by their first position, in words."""
    ranges = {one["first"]: one["end"] for figures in found.values() for one in figures["positions"]}
    return {
        first: f"from {first}" if (end := ranges[first]) is None else f"{first} to {end}" for first in sorted(ranges)
    }


def layers(report: dict[str, Any]) -> Table:
    """The layers with the largest errors."""
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
    """Remarks that follow from the figures."""
    found, noise = report["mismatch"], report["noise"]["k3_kl"]
    if noise > 0:
        yield f"KL (k3) is {found['k3_kl'] / noise:.3g} times the noise floor: {found['k3_kl']:.3g} to {noise:.3g}."
    if report["prompts_left_out"]:
        yield f"{report['prompts_left_out']} prompts were left out (--tokens {report['tokens']})."
    token, sequence = found["ess"], found["sequence_weights"]["ess"]
    yield (
        f"Truncated importance sampling, clipped at {THRESHOLD:g}, leaves {token:.3g} of a batch with a weight a "
        f"token, {sequence:.3g} with a weight a sequence as long as these."
    )
    if token < LEAST:
        yield (
            f"Below {LEAST:g} weights mend little: `ignore` the worst layers, take a finer scheme, or train for this "
            "one (QAT)."
        )
    elif sequence < LEAST:
        yield (
            f"Below {LEAST:g} weights of sequences waste the batch: set rollout_correction.rollout_is (in a recipe "
            "correction.level) to token."
        )


def _cell(value: float, error: float | None = None) -> str:
    return f"{value:.4g}" + ("" if error is None else f" ± {error:.1g}")


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report of `measure.measure`."""
    from matplotlib.figure import Figure

    drawn = [_histogram, _positions, *([_layers] if report["layers"] else [])]
    figure = Figure(figsize=(7 * len(drawn), 6), layout="constrained")
    panels = figure.subplots(1, len(drawn), squeeze=False)[0]
    for panel, axes in zip(drawn, panels, strict=True):
        panel(report, axes)
    figure.suptitle(f"{report['model']}, {report['scheme']} against bf16, {report['machine']['device']}")
    figure.savefig(path, dpi=120)


def _histogram(report: dict[str, Any], axes: Any) -> None:
    """Plot the histogram of train - rollout; its end bins hold what is outside of the middle 99.8 %."""
    import numpy as np

    names = ["mismatch", *report["parts"], "noise"]
    deltas = {
        label: np.concatenate([np.subtract(one["train"], one["rollout"]) for one in report["sequences"][name]])
        for label, name in zip(policies(report), names, strict=True)
    }
    edge = float(np.quantile(np.abs(np.concatenate(list(deltas.values()))), 0.998)) or 1e-6
    bins = np.linspace(-edge, edge, BINS + 1)
    for label, values in deltas.items():
        shown = np.clip(values, -edge, edge)
        axes.hist(shown, bins, weights=np.full(len(values), 1 / len(values)), histtype="step", label=label)
    axes.set(title="delta logprob: scored by bf16 - sampled", xlabel="nats", ylabel="of all tokens", yscale="log")
    axes.legend()


def _positions(report: dict[str, Any], axes: Any) -> None:
    """The KL of each policy in each range of positions, with its standard error."""
    found = policies(report)
    ranges = spans(found)
    places = {first: place for place, first in enumerate(ranges)}
    for label, figures in found.items():
        held = figures["positions"]
        heights, errors = [one["k3_kl"] for one in held], [one["standard_error"] or 0.0 for one in held]
        axes.errorbar([places[one["first"]] for one in held], heights, errors, marker="o", label=label)
    axes.set_xticks(list(places.values()), list(ranges.values()))
    axes.set(title="KL a token (k3)", xlabel="position", yscale="log")
    axes.legend()


def _layers(report: dict[str, Any], axes: Any) -> None:
    worst = report["layers"][:DRAWN][::-1]
    axes.barh([layer["name"] for layer in worst], [100 * layer["error"] for layer in worst])
    axes.set(title=f"layers, the worst {len(worst)} of {len(report['layers'])}", xlabel="relative error, %")
    axes.tick_params(axis="y", labelsize=7)
