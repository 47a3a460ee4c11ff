"""Start-up time by stage, up to the end of the first step: a table in the log, and `start_up/*` metrics.

A mark ends a stage and begins the next one, on the clock of the trainer's process, so the stages add up to the total.
Times measured inside a stage by other processes or timers (a worker, an engine, a step's timers) are listed below it,
with the remainder as `other`. After step 1, nothing is recorded.
"""

import os
import time
from collections.abc import Callable, Mapping

STARTED = "ASCEND_QUANT_STARTED"  # seconds since the epoch: start of the run, then (after a comma) job submission
OTHER = "other"
PREFIX = "start_up/"
# stages and parts that users can shorten; they are logged as metrics
LOGGED = ("ray cluster", "workers placed", "dataset", "models", "engines", "engines/torch.compile")


class StartUp:
    """A timer of the start-up stages of this process's run.

    Args:
        environment: contains STARTED, which the launcher or main_ppo sets; without it the run begins now. [default:
            os.environ]
        now: current time, in seconds since the epoch.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, now: Callable[[], float] = time.time):
        self._now = now
        self.stages: dict[str, float] = {}  # seconds, in the order in which the stages ended
        self.inside: dict[str, dict[str, float]] = {}
        begins, _, submitted = (os.environ if environment is None else environment).get(STARTED, "").partition(",")
        self._last = float(begins) if begins else now()
        if submitted:
            self._end("ray cluster", float(submitted))
        if begins:
            self._end("driver", now())

    def mark(self, stage: str, inside: Mapping[str, float] | None = None) -> None:
        """Mark the end of a stage; only the first call for each stage counts.

        Args:
            inside: seconds of the stage's parts, which do not overlap.
        """
        if stage in self.stages:
            return
        self._end(stage, self._now())
        if inside:
            rest = self.stages[stage] - sum(inside.values())
            self.inside[stage] = {**inside, OTHER: max(rest, 0.0)}

    def _end(self, stage: str, moment: float) -> None:
        self.stages[stage], self._last = moment - self._last, moment

    @property
    def total(self) -> float:
        return sum(self.stages.values())

    def metrics(self) -> dict[str, float]:
        """Return the seconds of the stages listed in LOGGED, and `start_up/total`."""
        found = {**self.stages}
        found |= {f"{stage}/{part}": value for stage, parts in self.inside.items() for part, value in parts.items()}
        logged = {PREFIX + name.replace(" ", "_"): found[name] for name in LOGGED if name in found}
        return {**logged, PREFIX + "total": self.total}

    def table(self) -> str:
        """Format a table with a line for each stage, its share of the total, and its parts."""
        lines = ["start to first step, seconds:"]
        for stage, seconds in self.stages.items():
            lines.append(f"  {stage:32}{seconds:9.1f}{100 * seconds / max(self.total, 1e-9):6.0f} %")
            lines += [f"    {part:30}{value:9.1f}" for part, value in self.inside.get(stage, {}).items()]
        return "\n".join([*lines, f"  {'total':32}{self.total:9.1f}"])


def began_here() -> None:
    """Record this process's start as the start of the run, for the processes of the Ray cluster that it starts."""
    os.environ.setdefault(STARTED, str(time.time()))
