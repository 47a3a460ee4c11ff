"""What came of one part of the smoke test."""

from dataclasses import dataclass, field
from typing import Any, Literal

OK, FAILED, NOT_APPLICABLE = "ok", "failed", "not applicable"
Status = Literal["ok", "failed", "not applicable"]


@dataclass(frozen=True)
class Result:
    """One part.

    Attributes:
        short: what the table shows of it.
        reason: why it failed, or why it is not applicable and what to do instead; "" where all is well.
        figures: what was measured or found, as JSON has it.
    """

    name: str
    status: Status
    seconds: float = 0.0
    short: str = ""
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def judged(name: str, problems: list[str], seconds: float, short: str, figures: dict[str, Any]) -> Result:
    """ok, or failed for these reasons."""
    return Result(name, FAILED if problems else OK, seconds, short, "; ".join(problems), figures)


def not_applicable(name: str, reason: str) -> Result:
    """Not for this machine, or not with what it has."""
    return Result(name, NOT_APPLICABLE, reason=reason)
