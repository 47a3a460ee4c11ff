"""A refit's kernels: BF16 rows are quantized into the engine's buffers, counted and digested.

write.py            moves of a refit, grouped into launches; launches.py has what a launch needs
triton_rows.py      rows with one scale each, or one a tensor, and plain copies
triton_tiles.py     int4 in Marlin's tiles
triton_groups.py    fake quantization of groups
digests.py          fingerprints of bytes; triton_digest.py has their sums
"""
