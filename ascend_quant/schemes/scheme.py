"""The row that names a scheme."""

from dataclasses import dataclass


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
