"""The dataclass that describes a scheme, and the constants of the schemes' arithmetic."""

from dataclasses import dataclass

INT8_MAX = 127
INT8_MIN = -128  # of codes made with a given scale
FP8_MAX = 448  # the largest float8_e4m3fn
FP8_CAPABILITY = (8, 9)  # of the first NVIDIA GPUs with FP8 units
INT4_MAX = 7
BLOCK = 128  # rows and columns of fp8_block's blocks
TINY = 2.0**-100  # magnitudes below it count as 0
NIBBLES = 8  # int4 codes in an int32


@dataclass(frozen=True)
class Scheme:
    """A quantization scheme: how weights and activations are held.

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
        """True if matrices are stored as codes and scales."""
        return self.codes is not None
