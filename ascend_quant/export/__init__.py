"""What a trainer has saved, as a Hugging Face folder in BF16, from which `convert` goes on.

errors.py        what cannot be exported
metadata.py      what a checkpoint of torch.distributed holds, read without running anything of it
torch_dist.py    slices of the tensors of a Megatron checkpoint, as it lies on disk
megatron.py      those, by the names of the Hugging Face model
model.py         the tensors that the model has, by its config.json
fsdp.py          a file a rank, merged by verl
bf16_folder.py   a Hugging Face folder, written a file at a time
trained.py       which kind of checkpoint a folder is, and its way to BF16
"""

from ascend_quant.export.errors import ExportError
from ascend_quant.export.trained import Trained, find, write_bf16

__all__ = ["ExportError", "Trained", "find", "write_bf16"]
