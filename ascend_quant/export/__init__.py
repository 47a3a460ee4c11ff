"""Export of a trainer's checkpoint to a Hugging Face folder in BF16, which `convert` can then quantize.

torch_dist.py    slices of the tensors of a Megatron checkpoint, as it lies on disk; nothing of it is run
megatron.py      those, by the names of the Hugging Face model
fsdp.py          the tensors of FSDP's shards, a file a rank
lora.py          those, by the names of the model, with an adapter merged
trained.py       which kind of checkpoint a folder is, and its way to BF16
"""

from ascend_quant.export.trained import Trained, find, write_bf16
from ascend_quant.profile.checkpoints import BadCheckpoint

__all__ = ["BadCheckpoint", "Trained", "find", "write_bf16"]
