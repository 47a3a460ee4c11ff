"""CUDA kernels of a refit: they quantize BF16 rows into the engine's buffers, with statistics and checksums.

write.py                    writes of a refit, from device memory or from host memory (uploads.py)
grouping.py                 grouping of writes into launches; launches.py starts them
triton_rows.py              rows with one scale each, or a known one, and plain copies
triton_shared_scales.py     fp8 with a scale per block or tensor
triton_entries.py           entries of a launch's table, and statistics
triton_tiles.py             int4 in Marlin's tiles
triton_groups.py            fake quantization of int4 groups
digests.py                  checksums; triton_digest.py has their kernels
"""
