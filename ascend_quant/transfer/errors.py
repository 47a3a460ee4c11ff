"""Errors of a refit, and the reason that an engine gives while it refuses to serve."""


class RefitError(RuntimeError):
    """Raised for a refit that cannot be trusted; the message names the parameter and what to do."""


REFUSES = "this engine refuses"


def refusal(why: str, what: str = "to generate") -> str:
    """Return the message for a caller of an engine that refuses to serve, or did not apply the weights."""
    return f"{REFUSES} {what}: {why}"
