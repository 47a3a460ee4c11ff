"""Conversion of checkpoints: BF16 to int8, fp8 or int4 (compressed-tensors and other formats), and back.

source.py          the input folder, checked before anything is written
formats.py         tensors of a quantized layer and quantization_config, by format
quantizer.py       codes and scales, a few rows at a time
model.py           the tensors that a model must have, by its config.json
quantized.py       layers of a quantized checkpoint that is dequantized; fp8.py its fp8 layers
pieces.py          the conversion of one tensor
plan.py            which layers are quantized; the pieces of every shard
shard_file.py      a safetensors file whose tensors are written in any order
output.py          OUT.partial, from which an interrupted conversion resumes
workers.py         threads that convert shards
conversion.py      the whole conversion, with the index, config.json and the manifest
"""

from ascend_quant.convert.conversion import Request, Summary, convert
from ascend_quant.profile.checkpoints import BadCheckpoint

__all__ = ["BadCheckpoint", "Request", "Summary", "convert"]
