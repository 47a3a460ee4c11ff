"""CUDA kernels of a refit: they quantize BF16 rows into the engine's buffers, with statistics and checksums.

write.py                    writes of a refit, from device memory or by way of it (uploads.py)
grouping.py                 which of them are one launch; launches.py has what a launch needs
triton_rows.py              rows with one scale each, or a known one, and plain copies
triton_shared_scales.py     fp8 with a scale a block or a tensor
triton_entries.py           what these find in a launch's table, and what they add their findings to
triton_tiles.py             int4 in Marlin's tiles
triton_groups.py            fake quantization of groups
digests.py                  fingerprints of bytes; triton_digest.py has their sums
"""
