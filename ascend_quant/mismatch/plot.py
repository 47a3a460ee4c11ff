"""The report as a PNG: how far log-probabilities are apart, and the layers' errors."""

from pathlib import Path
from typing import Any

SHOWN = 30
BINS = 61  # odd: one around zero


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report of `measure.measure`, raw sequences included."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14 + 6 * bool(report["cache"]), 6), layout="constrained")
    drawn = [_histogram, *([_layers] if report["layers"] else []), *([_positions] if report["cache"] else [])]
    panels = figure.subplots(1, len(drawn), squeeze=False)[0]
    for panel, axes in zip(drawn, panels, strict=True):
        panel(report, axes)
    figure.suptitle(f"{report['model']}, {report['scheme']} against bf16, {report['machine']['device']}")
    figure.savefig(path, dpi=120)


def _histogram(report: dict[str, Any], axes: Any) -> None:
    """Of train - rollout; the last bins hold what lies further out than the 99.8 % in the middle."""
    import numpy as np

    from ascend_quant.mismatch.report import rollout

    names = {"noise": "bf16 / bf16 (noise floor)", "mismatch": f"{rollout(report)} / bf16"}
    deltas = {key: differences(report["raw"][key]) for key in names}
    edge = float(np.quantile(np.abs(np.concatenate(list(deltas.values()))), 0.998)) or 1e-6
    bins = np.linspace(-edge, edge, BINS + 1)
    for key, label in names.items():
        values = np.clip(deltas[key], -edge, edge)
        axes.hist(values, bins, weights=np.full(len(values), 1 / len(values)), alpha=0.6, label=label)
    axes.set(title="delta logprob: scored by bf16 - sampled", xlabel="nats", ylabel="of all tokens", yscale="log")
    axes.legend()


def _positions(report: dict[str, Any], axes: Any) -> None:
    """The KL of each part in each range of positions, with its standard error."""
    from ascend_quant.mismatch.report import span

    split = report["cache"]
    for number, part in enumerate(split["parts"]):
        buckets = part["buckets"][1:]
        places = [place + 0.12 * (number - len(split["parts"]) / 2) for place in range(len(buckets))]
        heights, errors = [one["k3_kl"] for one in buckets], [one["standard_error"] or 0.0 for one in buckets]
        axes.errorbar(places, heights, errors, marker="o", linestyle="none", label=f"{part['name']}: {part['about']}")
    axes.set_xticks(range(len(buckets)), [span(bucket) for bucket in buckets])
    axes.set(title=f"KL a token by position, {split['kv_cache']} cache", xlabel="position", yscale="log")
    axes.legend(fontsize=7)


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
