"""report.png: six small panels by step, all arms in each, and dashed the replicas of an arm that has several."""

from math import nan
from pathlib import Path
from typing import Any

PANELS = (
    ("reward", "reward (exact answers)", "linear"),
    ("k3_kl", "mismatch KL (k3), trainer against rollout", "log"),
    ("ess", "effective sample size (of 1)", "linear"),
    ("refit_seconds", "refit time (s)", "linear"),
    ("step_seconds", "time of a step (s)", "linear"),
    ("tokens_per_second", "tokens/s, over the whole step", "linear"),
)


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report's arms into one PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 7), layout="constrained")
    for axes, (field, title, scale) in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
        for arm in report["arms"]:
            for line, style in ((arm, "-"), *((replica, "--") for replica in arm.get("replicas", ()))):
                # replicas have no reward, and arms without importance weights no effective sample size
                points = [(step["step"], step.get(field, nan)) for step in line["steps"]]
                axes.plot(*zip(*points, strict=True), style, marker=".", label=line["name"])
        axes.set(title=title, xlabel="step", yscale=scale)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(title="rollout")
    hardware = report["hardware"].get("gpu", report["hardware"]["cpu"])
    figure.suptitle(f"{report['task']}, {report['model']}, seed {report['seed']}, {hardware}")
    figure.savefig(path, dpi=120)
