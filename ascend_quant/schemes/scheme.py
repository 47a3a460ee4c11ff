"""The dataclass that describes a scheme, and the constants of the schemes' arithmetic."""

from dataclasses import dataclass

INT8_MAX = 127
INT8_MIN = -128  # of codes with a fixed scale
FP8_MAX = 448  # the largest float8_e4m3fn
FP8_CAPABILITY = (8, 9)  # compute capability of the first NVIDIA GPUs with FP8 units
INT4_MAX = 7
BLOCK = 128  # rows and columns of a block in fp8_block
TINY = 2.0**-100  # smaller magnitudes count as 0
NIBBLES = 8  # int4 codes per int32


@dataclass(frozen=True)
class Scheme:
    """A quantization scheme: how weights and activations are stored.

    Attributes:
        name: the name that users write.
        codes: how a weight's elements are stored: int8, fp8 (float8_e4m3fn) or int4; None if weights are not quantized.
        shares: which elements share a scale: a row (an output channel), the tensor, a 128x128 block, or a group of
            adjacent elements of a row.
        group: number of elements per group; 0 if scales are not shared by groups.
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
