"""Schemes: what a weight becomes inside the engine, by name.

A new scheme is one row here, one definition in `oracle.py`, and kernels where they are faster.
"""

from dataclasses import dataclass


class UnknownScheme(ValueError):
    """A scheme name that this version does not have."""


@dataclass(frozen=True)
class Scheme:
    """One way to hold weights and activations.

    Attributes:
        name: the word users write.
        quantized: whether matrices are stored as codes and scales; False leaves every weight as it arrives.
        summary: one line for messages and tables.
    """

    name: str
    quantized: bool
    summary: str


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("int8", True, "W8A8: symmetric per-output-channel weights, dynamic per-token activations"),
        Scheme("bf16", False, "weights as they arrive; the same refit checks and receipts, no quantization"),
    )
}


def get_scheme(name: str) -> Scheme:
    """The scheme called `name`.

    Raises:
        UnknownScheme: naming the valid ones.
    """
    if name not in SCHEMES:
        raise UnknownScheme(f"unknown scheme {name!r}; this version has: {', '.join(SCHEMES)}")
    return SCHEMES[name]
