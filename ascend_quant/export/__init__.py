"""Export of a trainer's checkpoint to a Hugging Face folder in BF16, which `convert` can then quantize.

torch_dist.py    slices of the tensors of a Megatron checkpoint on disk, without running its code
megatron.py      those tensors under the names of the Hugging Face model
fsdp.py          the tensors of FSDP's shards, one file per rank
lora.py          those tensors under the names of the model, with adapters merged
trained.py       detection of a checkpoint's kind, and its export to BF16
"""

from ascend_quant.export.trained import Trained, find, write_bf16
from ascend_quant.profile.checkpoints import BadCheckpoint

__all__ = ["BadCheckpoint", "Trained", "find", "write_bf16"]
