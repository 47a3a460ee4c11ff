"""What a training has written: each step's metrics, for the demo's record, and the lines that say what went wrong.

The metrics are JSON lines of verl's `file` logger.
"""

import json
from pathlib import Path
from typing import Any

from launch.cause import of_log, split
from launch.demo import DemoError

FIELDS = {
    "reward": "critic/rewards/mean",
    "k3_kl": "rollout_corr/k3_kl",
    "step_seconds": "timing_s/step",
    "refit_seconds": "timing_s/update_weights",
}
WEIGHT_FIELDS = {  # of runs with importance weights
    "is_mean": "rollout_corr/rollout_is_mean",
    "is_max": "rollout_corr/rollout_is_max",
    "ess": "rollout_corr/rollout_is_eff_sample_size",
}
SPEED_FIELDS = {
    "rollout_seconds": "timing_s/gen",
    "update_seconds": "timing_s/update_actor",
    "answer_tokens": "response_length/mean",
    "tokens_per_second": "perf/throughput",  # of prompts and answers, over the whole step, for each device
    "rollout_ms_per_token": "timing_per_token_ms/gen",  # of all answers together
}
PREFIX = "refit/"
SHOWN, LONGEST = 5, 300  # lines of a log, and characters of each


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The steps logged so far; a line that is still being written is left for the next look."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines if '"timing_s/step"' in line]


def step_record(line: dict[str, Any], corrected: bool = True) -> dict[str, float]:
    """One step of the report; a metric that verl did not log is an error, not a gap in a plot.

    Args:
        corrected: whether the run has importance weights, of which verl then logs figures.
    """
    return pick(line, FIELDS | (WEIGHT_FIELDS if corrected else {}))


def speed_record(line: dict[str, Any]) -> dict[str, float]:
    """How fast a step was; rollout_tokens_per_second counts the answers' tokens over the rollout's time."""
    record = pick(line, SPEED_FIELDS)
    return record | {"rollout_tokens_per_second": 1000 / record.pop("rollout_ms_per_token")}


def pick(line: dict[str, Any], fields: dict[str, str]) -> dict[str, float]:
    missing = [name for name in fields.values() if line["data"].get(name) is None]
    if missing:
        raise DemoError(f"step {line['step']} has no {', '.join(missing)}: this verl logs other metrics than 0.9.1")
    return {"step": line["step"]} | {field: line["data"][name] for field, name in fields.items()}


def receipt(line: dict[str, Any]) -> dict[str, float]:
    """The refit metrics of one step without their prefix; those of a single replica are left out."""
    found = {name.removeprefix(PREFIX): value for name, value in line["data"].items() if name.startswith(PREFIX)}
    return {name: value for name, value in found.items() if "/" not in name}


def last_errors(log: Path) -> str:
    """The cause with the place where it stands, or the last lines and the log when none of them is an error."""
    if cause := of_log(log):
        return "\n".join(["the log says:", *cause.lines()])
    lines = [split(line)[1].strip() for line in log.read_text(errors="replace").splitlines()]
    shown = [line[:LONGEST] for line in lines if line][-SHOWN:]
    return "\n".join(["the log says:", *(f"  {line}" for line in shown), f"the whole log: {log}"])
