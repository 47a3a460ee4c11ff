"""Refit kernels for NPUs, built from torch_npu's operators.

write.py     chunks of rows: quantized, digested and copied to their destinations
codes.py     int8 codes and absmax of rows without a division
digests.py   checksums on the matrix unit
formats.py   the formats of resident weights (ND, FRACTAL_NZ), written in place
pieces.py    batching of the rows of many tensors into chunks
"""
