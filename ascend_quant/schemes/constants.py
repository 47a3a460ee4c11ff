"""Numbers of the schemes' rules."""

INT8_MAX = 127
INT8_MIN = -128  # of codes made with a given scale
FP8_MAX = 448  # the largest float8_e4m3fn
FP8_CAPABILITY = (8, 9)  # of the first NVIDIA GPUs with FP8 units
INT4_MAX = 7
BLOCK = 128  # rows and columns of fp8_block's blocks
TINY = 2.0**-100  # magnitudes below it count as 0
NIBBLES = 8  # int4 codes in an int32
