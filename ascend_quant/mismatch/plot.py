"""The report as a PNG: how far log-probabilities are apart, the KL by position, and the layers' errors."""

from pathlib import Path
from typing import Any

from ascend_quant.mismatch.report import policies, spans

SHOWN = 30
BINS = 61  # odd: one around zero


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
    """Of train - rollout; the last bins hold what lies further out than the 99.8 % in the middle."""
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
    worst = report["layers"][:SHOWN][::-1]
    axes.barh([layer["name"] for layer in worst], [100 * layer["error"] for layer in worst])
    axes.set(title=f"layers, the worst {len(worst)} of {len(report['layers'])}", xlabel="relative error, %")
    axes.tick_params(axis="y", labelsize=7)
