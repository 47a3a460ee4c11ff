"""Checkpoint to checkpoint: BF16 to int8, fp8 or int4 (compressed-tensors and other formats), and back.

source.py          IN, checked before anything is written
formats.py         the tensors of a quantized layer and what config.json says about them, by format
quantizer.py       codes and scales, a few rows at a time, on a device that makes the same ones
model.py           the tensors that the model has, by its config.json
quantized.py       the layers of a quantized checkpoint, to be undone; fp8.py the fp8 ones
pieces.py          what becomes of one tensor
plan.py            which layers are quantized; the pieces of every shard
shard_file.py      a safetensors file whose tensors are written in any order
output.py          OUT.partial: what is finished stays finished
workers.py         threads that convert shards
conversion.py      all of it, in order; with the index, config.json and the manifest
"""

from ascend_quant.convert.conversion import Request, Summary, convert
from ascend_quant.profile.checkpoints import BadCheckpoint

__all__ = ["BadCheckpoint", "Request", "Summary", "convert"]
