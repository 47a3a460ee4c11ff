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
REPLICA_FIELDS = {
    "samples": "rollout_corr/{replica}/samples",
    "k3_kl": "rollout_corr/{replica}/k3_kl",
    "ess": "rollout_corr/{replica}/ess",
    "refit_seconds": "refit/{replica}/milliseconds",
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
    return pick(line, FIELDS)


def replica_record(line: dict[str, Any], rank: int) -> dict[str, float]:
    """One step of one of several replicas; its refit is timed by its own receipt, without the trainer's part."""
    record = pick(line, {field: name.format(replica=f"replica{rank}") for field, name in REPLICA_FIELDS.items()})
    return record | {"refit_seconds": record["refit_seconds"] / 1000}


def pick(line: dict[str, Any], fields: dict[str, str]) -> dict[str, float]:
    missing = [name for name in fields.values() if line["data"].get(name) is None]
    if missing:
        raise DemoError(f"step {line['step']} has no {', '.join(missing)}: this verl logs other metrics than 0.9.1")
    return {"step": line["step"]} | {field: line["data"][name] for field, name in fields.items()}


def receipt(line: dict[str, Any], rank: int | None = None) -> dict[str, float]:
    """The refit metrics of one step without their prefix: of all replicas together, or of the one of this rank."""
    prefix = RECEIPT_PREFIX if rank is None else f"{RECEIPT_PREFIX}replica{rank}/"
    found = {name.removeprefix(prefix): value for name, value in line["data"].items() if name.startswith(prefix)}
    return {name: value for name, value in found.items() if "/" not in name}
