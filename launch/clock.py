"""How far a host's clock is from another's: from the times of a question and its answer, with the way measured out."""

from dataclasses import dataclass

ALLOWED_SECONDS = 5


@dataclass
class Clock:
    """The best measurement so far: the one whose question and answer took least."""

    offset: float = 0.0
    error: float = float("inf")

    def take(self, asked: float, answered: float, theirs: float) -> None:
        """A question was asked and answered at these times of this clock, and the host's clock then said `theirs`."""
        error = (answered - asked) / 2
        if 0 <= error < self.error:
            self.offset, self.error = theirs - (asked + answered) / 2, error

    @property
    def known(self) -> bool:
        """Whether an answer has come."""
        return self.error < float("inf")

    def wrong(self, whose: str = "the control host's") -> str | None:
        """What is wrong, if the difference is too large whatever the way took; it was compared with `whose` clock."""
        if abs(self.offset) - self.error <= ALLOWED_SECONDS:
            return None
        ahead = "ahead of" if self.offset > 0 else "behind"
        return f"clock skew: its clock is {abs(self.offset):.0f} s {ahead} {whose}: set it (chrony, ntpd)"
