"""From the JSON lines that verl's `file` logger writes to the demo's record of each step."""

import json
from pathlib import Path
from typing import Any

from launch.demo.errors import DemoError

FIELDS = {
    "reward": "critic/rewards/mean",
    "k3_kl": "rollout_corr/k3_kl",
    "is_mean": "rollout_corr/rollout_is_mean",
    "is_max": "rollout_corr/rollout_is_max",
    "ess": "rollout_corr/rollout_is_eff_sample_size",
    "step_seconds": "timing_s/step",
    "refit_seconds": "timing_s/update_weights",
}
RECEIPT_PREFIX = "refit/"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The steps logged so far; a line that is still being written is left for the next look."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines if '"timing_s/step"' in line]


def step_record(line: dict[str, Any]) -> dict[str, float]:
    """One step of the report; a metric that verl did not log is an error, not a gap in a plot."""
    missing = [name for name in FIELDS.values() if line["data"].get(name) is None]
    if missing:
        raise DemoError(f"step {line['step']} has no {', '.join(missing)}: this verl logs other metrics than 0.9.1")
    return {"step": line["step"]} | {field: line["data"][name] for field, name in FIELDS.items()}


def receipt(line: dict[str, Any]) -> dict[str, float]:
    """The refit metrics of one step, without their prefix."""
    data = line["data"].items()
    return {name.removeprefix(RECEIPT_PREFIX): value for name, value in data if name.startswith(RECEIPT_PREFIX)}
