"""A refit on NPUs, by torch_npu's own operations.

write.py     chunks of rows: quantized, digested and copied to their places
codes.py     codes and largest magnitudes of rows without a division
digests.py   fingerprints of bytes on the matrix unit
formats.py   the formats of resident weights (ND, FRACTAL_NZ), written in place
pieces.py    how the rows of many tensors are put together into chunks and runs
"""
