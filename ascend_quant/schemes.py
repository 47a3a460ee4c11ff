"""Schemes: what a weight becomes inside the engine, by name.

A new scheme is one row here, one definition in `oracle`, and kernels where they are faster.
"""

from dataclasses import dataclass


class UnknownScheme(ValueError):
    """A scheme name that this version does not have."""


@dataclass(frozen=True)
class Scheme:
    """One way to hold weights and activations.

    Attributes:
        name: the word users write.
        codes: what a weight's elements are stored as: int8, fp8 (float8_e4m3fn) or int4; None leaves every weight as
            it arrives.
        shares: which elements have one scale: a row (an output channel), the tensor, a block of 128 x 128, or a group
            of a row's neighbours.
        group: elements of a group; 0 where a scale is shared otherwise.
        summary: one line for messages and tables.
    """

    name: str
    codes: str | None
    shares: str | None
    summary: str
    group: int = 0

    @property
    def quantized(self) -> bool:
        """Whether matrices are stored as codes and scales."""
        return self.codes is not None


PER_TOKEN = "dynamic per-token activations"
SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("int8", "int8", "row", f"W8A8: symmetric per-output-channel weights, {PER_TOKEN}"),
        Scheme("fp8", "fp8", "row", f"W8A8 in float8_e4m3fn: per-output-channel weights, {PER_TOKEN}"),
        Scheme("fp8_tensor", "fp8", "tensor", f"W8A8 in float8_e4m3fn: one scale a weight tensor, {PER_TOKEN}"),
        Scheme("fp8_block", "fp8", "block", "W8A8 in float8_e4m3fn: 128x128 weight blocks, 1x128 activation groups"),
        Scheme("int4_g128", "int4", "group", "W4A16: symmetric weights in groups of 128", 128),
        Scheme("int4_g32", "int4", "group", "W4A16: symmetric weights in groups of 32", 32),
        Scheme("bf16", None, None, "weights as they arrive; the same refit checks and receipts, no quantization"),
    )
}
ALIASES = {"fp8_block:128x128": "fp8_block"}  # the one block that engines have kernels for


def get_scheme(name: str) -> Scheme:
    """The scheme called `name`.

    Raises:
        UnknownScheme: naming the valid ones.
    """
    name = ALIASES.get(name, name)
    if name not in SCHEMES:
        raise UnknownScheme(f"unknown scheme {name!r}; this version has: {', '.join(SCHEMES)}")
    return SCHEMES[name]
