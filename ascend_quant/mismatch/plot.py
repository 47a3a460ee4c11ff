"""The report as a PNG: how far log-probabilities are apart, and the layers' errors."""

from pathlib import Path
from typing import Any

SHOWN = 30
BINS = 61  # odd: one around zero


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report of `measure.measure`, raw sequences included."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 6), layout="constrained")
    panels = figure.subplots(1, 2 if report["layers"] else 1, squeeze=False)[0]
    _histogram(report, panels[0])
    if report["layers"]:
        _layers(report, panels[1])
    figure.suptitle(f"{report['model']}, {report['scheme']} against bf16, {report['machine']['device']}")
    figure.savefig(path, dpi=120)


def _histogram(report: dict[str, Any], axes: Any) -> None:
    """Of train - rollout; the last bins hold what lies further out than the 99.8 % in the middle."""
    import numpy as np

    names = {"noise": "bf16 / bf16 (noise floor)", "mismatch": f"{report['scheme']} / bf16"}
    deltas = {key: differences(report["raw"][key]) for key in names}
    edge = float(np.quantile(np.abs(np.concatenate(list(deltas.values()))), 0.998)) or 1e-6
    bins = np.linspace(-edge, edge, BINS + 1)
    for key, label in names.items():
        values = np.clip(deltas[key], -edge, edge)
        axes.hist(values, bins, weights=np.full(len(values), 1 / len(values)), alpha=0.6, label=label)
    axes.set(title="delta logprob: scored by bf16 - sampled", xlabel="nats", ylabel="of all tokens", yscale="log")
    axes.legend()


def differences(sequences: list[dict[str, Any]]) -> list[float]:
    """train - rollout of every token."""
    pairs = [pair for one in sequences for pair in zip(one["train"], one["rollout"], strict=True)]
    return [train - rollout for train, rollout in pairs]


def _layers(report: dict[str, Any], axes: Any) -> None:
    worst = report["layers"][:SHOWN][::-1]
    suggested = report["suggested_ignore"]["layers"]
    colours = ["tab:red" if layer["name"] in suggested else "tab:blue" for layer in worst]
    axes.barh([layer["name"] for layer in worst], [100 * layer["error"] for layer in worst], color=colours)
    axes.set(title=f"layers, the worst {len(worst)} of {len(report['layers'])}", xlabel="relative error, %")
    axes.tick_params(axis="y", labelsize=7)
