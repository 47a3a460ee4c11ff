"""Errors of a refit, and the reason that an engine which may not serve gives."""


class RefitError(RuntimeError):
    """A refit that cannot be trusted; the message names the parameter and what to do."""


REFUSES = "this engine refuses"


def refusal(why: str, what: str = "to generate") -> str:
    """Return the message to a caller of an engine that may not serve, or did not take what came."""
    return f"{REFUSES} {what}: {why}"
