"""A picture of one weight sync of each arm along time: the trainer above its server and its engine's worker."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.sync_stages import CALL, ENGINE_STAGES, OTHER, TRAINER_STAGES
from benchmarks.tasks import Outcome

LEAST_WIDTH = 0.04  # of the picture's: calls that have their name written
LANES = ("trainer", "server", "engine")


def draw(outcomes: Sequence[Outcome], gpus: Sequence[str], path: Path) -> None:
    """One sync of each arm along time: the trainer above its server and its engine; nothing while there is none."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    shown = [outcome for outcome in outcomes if (outcome.result or {}).get("drawn")]
    if not shown:
        return
    colors = _colors()
    latest = max(one["end"] for outcome in shown for one in outcome.result["drawn"])
    figure = Figure(figsize=(13, 1 + 3.2 * len(shown)), layout="constrained")
    for axes, outcome in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
        top, ticks = 0, []
        for lane in LANES:
            calls = [one for one in outcome.result["drawn"] if one["lane"] == lane]
            for one in calls:
                box = (one["start"], one["end"] - one["start"])
                axes.broken_barh([box], (-top - one["depth"] - 0.95, 0.9), color=colors[one["stage"]])
                if box[1] > LEAST_WIDTH * latest:
                    name = one["call"].rpartition(".")[2]
                    where = (one["start"] + box[1] / 2, -top - one["depth"] - 0.5)
                    axes.text(*where, name, ha="center", va="center", fontsize=6, clip_on=True)
            height = 1 + max((one["depth"] for one in calls), default=-1)
            if height:
                ticks.append((-top - height / 2, lane))
            top += height
            axes.axhline(-top, color="black", linewidth=0.5)
        axes.set_yticks(*zip(*ticks, strict=True))
        axes.set(xlim=(0, latest * 1.01), ylim=(-top, 0), title=outcome.task.title())
    axes.set_xlabel("ms from the trainer's start of the sync")
    seen = {one["stage"] for outcome in shown for one in outcome.result["drawn"]}
    patches = [Patch(color=color, label=stage) for stage, color in colors.items() if stage in seen]
    figure.legend(handles=patches, loc="outside right upper", fontsize="small")
    device = gpus[0].split(",")[0] if gpus else "CPU"
    figure.suptitle(f"A weight sync of {shown[0].task.shape}, {shown[0].task.gpus} x {device}", x=0.02, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _colors() -> dict[str, tuple]:
    """One of each stage, on either side."""
    from matplotlib import colormaps

    stages = [stage for stage in dict.fromkeys((*TRAINER_STAGES, *ENGINE_STAGES)) if stage not in (OTHER, CALL)]
    palette = [*colormaps["tab20"].colors, *colormaps["Set3"].colors]
    return {**dict(zip(stages, palette, strict=False)), OTHER: (0.85, 0.85, 0.85)}
