"""The same command on every host (--on-this-node): each starts its own part, and they meet at the head's Ray.

Nobody reaches the other hosts, so they share two things in --out, which is the same storage on all: Ray's token, and
the versions of the head's software.
"""

from launch.cluster.run import run_on
from launch.plan.fields import Plan

MEETING = ".ray_meeting.json"


def run(plan: Plan, host: int, restarts: int) -> int:
    """This host's part of the plan; the head's exit code is the job's, and the workers learn it from the head."""
    return run_on(plan, [host], f"{plan.out}/{MEETING}" if len(plan.nodes) > 1 else None, restarts)
