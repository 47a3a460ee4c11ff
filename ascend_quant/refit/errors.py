"""What a refit raises, and what is said of an engine that may not serve."""


class RefitError(RuntimeError):
    """A refit that cannot be trusted; the message names the parameter and what to do."""


class Replaced(RefitError):
    """A parameter of the engine is another object than the one that refits write into: no refit heals that."""


def refusal(why: str) -> str:
    """What a caller is told by an engine that may not serve."""
    return f"this engine refuses to generate: {why}"
