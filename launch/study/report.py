"""What a study found: a table by rate and arm, an answer in words, and a picture of the steps.

Arms are compared with BF16 rollouts of the same seed and rate, so what seeds share falls out of the difference.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from math import nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from launch.demo.report import FINAL_STEPS
from launch.study.grid import ARMS, REFERENCE, ordered

SCHEMA = 1
LEARNT = 0.03  # of the reward: less is not told from noise, nor is a smaller gap to BF16 called one
PLAIN = "int8"
COLUMNS = ("lr", "rollout", "seeds", "reward", "less BF16's", "KL (k3)", "ESS")
VERDICTS = UNTOLD, FOLLOWS, BEHIND = "untold", "follows", "behind"
PANELS = (
    ("reward", "reward", "linear"),
    ("k3_kl", "mismatch KL (k3)", "log"),
    ("ess", "effective sample size (of 1)", "linear"),
)

Record = dict[str, Any]


def series(record: Record, field: str) -> list[float]:
    """A metric step by step; NaN where the arm has none."""
    values = record["metrics"].get(field) or [None] * len(record["metrics"]["reward"])
    return [nan if value is None else value for value in values]


def last(record: Record, field: str) -> float:
    """The mean of a metric over the last steps."""
    return fmean(series(record, field)[-FINAL_STEPS:])


def gain(record: Record) -> float:
    """How much the reward grew."""
    return last(record, "reward") - series(record, "reward")[0]


def by_rate(records: Sequence[Record]) -> dict[str, dict[str, list[Record]]]:
    """Rate, then arm; rates from the largest."""
    found: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in sorted(records, key=lambda record: -float(record["rate"])):
        found[record["rate"]][record["arm"]].append(record)
    return found


def gaps(arm: Sequence[Record], reference: Sequence[Record]) -> list[float]:
    """Of each seed that both have: the arm's last reward less that of BF16 rollouts."""
    known = {record["seed"]: last(record, "reward") for record in reference}
    return [last(record, "reward") - known[record["seed"]] for record in arm if record["seed"] in known]


def spread(values: Sequence[float]) -> float:
    """The standard error of the mean; NaN of fewer than two values."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else nan


def rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """A row for each rate and arm."""
    found = []
    for rate, arms in by_rate(records).items():
        for arm in ordered(arms):
            cells = arms[arm]
            gap = gaps(cells, arms.get(REFERENCE, ()))
            found.append(
                {
                    "rate": rate,
                    "arm": arm,
                    "seeds": len(cells),
                    "first": fmean(series(cell, "reward")[0] for cell in cells),
                    "last": fmean(last(cell, "reward") for cell in cells),
                    "gap": fmean(gap) if gap else nan,
                    "gap_error": spread(gap),
                    "k3_kl": fmean(last(cell, "k3_kl") for cell in cells),
                    "ess": fmean(last(cell, "ess") for cell in cells),
                }
            )
    return found


def verdicts(records: Sequence[Record]) -> list[dict[str, Any]]:
    """For each rate that both were trained at: whether int8 rollouts learn what BF16 rollouts learn.

    Returns:
        dicts with `rate`; `verdict`, one of VERDICTS; `learnt`, the gain of BF16's reward; `gap`, int8's behind it; and
        `helps`, the arms that stay with BF16 where int8 does not.
    """
    found = []
    for rate, arms in by_rate(records).items():
        if REFERENCE not in arms or PLAIN not in arms:
            continue
        learnt = fmean(map(gain, arms[REFERENCE]))
        behind = {arm: fmean(gap) for arm in ordered(arms) if (gap := gaps(arms[arm], arms[REFERENCE]))}
        gap = behind.get(PLAIN, nan)
        verdict = UNTOLD if learnt < LEARNT or gap != gap else FOLLOWS if gap > -LEARNT else BEHIND
        others = [arm for arm, value in behind.items() if arm not in (REFERENCE, PLAIN) and value > -LEARNT]
        helps = others if verdict == BEHIND else []
        found.append({"rate": rate, "verdict": verdict, "learnt": learnt, "gap": gap, "helps": helps})
    return found


def answers(records: Sequence[Record]) -> list[str]:
    """The verdicts in words."""
    found = []
    for one in verdicts(records):
        numbers = f"{one['gap']:+.3f} beside a gain of {one['learnt']:.3f}"
        helps = f"what stays with them: {', '.join(one['helps']) or 'no other arm'}"
        words = {
            UNTOLD: f"BF16 rollouts themselves gain {one['learnt']:+.3f}, too little to compare by the reward",
            FOLLOWS: f"int8 rollouts learn what BF16 rollouts learn ({numbers})",
            BEHIND: f"int8 rollouts fall behind BF16 rollouts ({numbers}); {helps}",
        }
        found.append(f"lr {one['rate']}: {words[one['verdict']]}")
    return found


def markdown(records: Sequence[Record], columns: Sequence[str] = COLUMNS) -> list[str]:
    """The table's lines."""
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows(records):
        gap = "" if row["arm"] == REFERENCE else shown(row["gap"], "{:+.3f}")
        error = "" if row["arm"] == REFERENCE else shown(row["gap_error"], " ± {:.3f}")
        lines.append(
            f"| {row['rate']} | {row['arm']} | {row['seeds']} | {row['first']:.3f} -> {row['last']:.3f} | {gap}{error} "
            f"| {row['k3_kl']:.1e} | {shown(row['ess'], '{:.4f}')} |"
        )
    return lines


def shown(value: float, form: str) -> str:
    """A number; nothing where there is none."""
    return "" if value != value else form.format(value)


def draw(records: Sequence[Record], path: Path) -> None:
    """A row of panels for each rate; a line is the mean over seeds, the shade from the least to the most."""
    from matplotlib.figure import Figure

    rates = by_rate(records)
    figure = Figure(figsize=(4.2 * len(PANELS), 3.2 * len(rates)), layout="constrained")
    panels = figure.subplots(len(rates), len(PANELS), squeeze=False)
    for line, (rate, arms) in zip(panels, rates.items(), strict=True):
        for axes, (field, title, scale) in zip(line, PANELS, strict=True):
            for arm in ordered(arms):
                color = f"C{ARMS.index(arm)}"  # the same at every rate
                plot(axes, [series(cell, field) for cell in arms[arm]], arm, color)
            axes.set(title=f"lr {rate}: {title}", xlabel="step")
            if scale == "log":
                axes.set_yscale(scale, nonpositive="mask")  # a KL of 0 has no place there
            else:
                axes.ticklabel_format(axis="y", useOffset=False)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(alpha=0.3)
    most = max(range(len(rates)), key=lambda line: len(panels[line][0].lines))
    panels[most][0].legend(title="rollout")
    first = records[0]
    hardware = first["hardware"].get("gpu", first["hardware"]["cpu"])
    figure.suptitle(f"{first['task']}, seeds {sorted({record['seed'] for record in records})}, {hardware}")
    figure.savefig(path, dpi=100)


def plot(axes: Any, cells: Sequence[Sequence[float]], label: str, color: str) -> None:
    """One arm in one panel."""
    columns = list(zip(*cells, strict=True))
    steps = range(1, len(columns) + 1)
    axes.plot(steps, [fmean(column) for column in columns], color=color, label=label)
    axes.fill_between(steps, list(map(min, columns)), list(map(max, columns)), color=color, alpha=0.15, linewidth=0)


def whole(records: Sequence[Record]) -> dict[str, Any]:
    """What study.json holds; NaN is null."""
    numbers = [{name: None if value != value else value for name, value in row.items()} for row in rows(records)]
    return {"schema": SCHEMA, "rows": numbers, "verdicts": verdicts(records), "cells": list(records)}


def text(records: Sequence[Record]) -> str:
    """study.json: a line for each row, verdict and cell."""
    parts = whole(records)
    lists = {name: ",\n  ".join(map(json.dumps, part)) for name, part in parts.items() if isinstance(part, list)}
    body = ",\n ".join(f'"{name}": [\n  {lines}\n ]' for name, lines in lists.items())
    return f'{{"schema": {parts["schema"]},\n {body}\n}}\n'


def write(records: Sequence[Record], folder: Path) -> None:
    """Write study.json, study.md and study.png."""
    (folder / "study.json").write_text(text(records))
    (folder / "study.md").write_text("\n".join([*markdown(records), "", *(f"* {one}" for one in answers(records)), ""]))
    draw(records, folder / "study.png")
