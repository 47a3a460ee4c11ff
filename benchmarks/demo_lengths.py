"""python -m benchmarks.demo_lengths MODEL OUT: the demo's training in answers of several lengths, on a CPU.

MODEL is one that was warmed up on the demo's running totals (launch/demo/tasks.py): `python -m benchmarks.demo_start`
makes it. For each number of lines a run of verl, INT8, as the demo's but for its lengths: what is left of a batch by
verl's own metrics, step by step.
"""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.machine import hardware, versions
from launch.demo.metrics import read_lines
from launch.demo.recipe import Choices
from launch.demo.tasks import LINE, Ledger, write_parquet
from launch.demo.training import train_arm

FORMAT = 1
ARM = "int8"
METRICS = {
    "kl": "rollout_corr/k3_kl",
    "share": "rollout_corr/rollout_is_eff_sample_size",
    "clipped": "rollout_corr/rollout_is_ratio_fraction_high",
    "tokens": "response_length/mean",
    "reward": "critic/rewards/mean",
}

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    model: Annotated[Path, typer.Argument(help="What benchmarks.demo_start wrote.")],
    out: Annotated[Path, typer.Argument(help="A folder for runs and logs; report.json says what came of them.")],
    lines: Annotated[str, typer.Option(help="Of an answer, seven tokens each.")] = "4,8,16",
    levels: Annotated[str, typer.Option(help="A weight for each: token, sequence.")] = "sequence,token",
    steps: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Train a few steps for each length and level; write every step's figures after each run."""
    found = {
        "format": FORMAT,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "hardware": hardware("cpu"),
        "versions": versions(),
        "scheme": ARM,
        "rows": [],
    }
    for level in levels.split(","):
        for count in map(int, lines.split(",")):
            found["rows"] += trained(model, out / f"{level}-{count}", count, level, steps)
            (out / "report.json").write_text(json.dumps(found, indent=1) + "\n")


def trained(model: Path, folder: Path, lines: int, level: str, steps: int) -> list[dict[str, Any]]:
    """Each step's figures."""
    shutil.copytree(model, folder / "start")
    task = Ledger(lines, lines)
    choices = Choices((ARM,), steps, level, 0, "qwen2")
    write_parquet(folder / "prompts.parquet", choices.prompts, 0, task)
    train_arm(choices, ARM, folder, print, lengths(task))
    rows = []
    for number, line in enumerate(read_lines(folder / ARM / "metrics.jsonl"), start=1):
        figures = {name: line["data"][metric] for name, metric in METRICS.items()}
        rows.append({"lines": lines, "level": level, "step": number, **figures})
        print(rows[-1])
    return rows


def lengths(task: Ledger) -> dict[str, Any]:
    """Settings of verl that follow from a task's lengths."""
    response = task.longest * LINE
    return {
        "data.max_prompt_length": task.width - response,
        "data.max_response_length": response,
        "actor_rollout_ref.rollout.max_model_len": task.width + LINE,
    }


if __name__ == "__main__":
    app()
