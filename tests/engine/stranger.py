"""What a trainer brings that knows nothing of this project: a worker extension; and vLLM's NCCL transfer without NCCL.

Not a test: test_writes_past.py and test_http_refusals.py name it as `worker_extension_cls`. Of the transfer the wire
alone is ours: tensors come in a file, start, load and finish are vLLM's.
"""

import os
from pathlib import Path

import torch
from safetensors.torch import load_file
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

BUCKET = "bucket.safetensors"  # in the folder of the variable STRANGER_WIRE


def receive(self, info) -> None:
    bucket = Path(os.environ["STRANGER_WIRE"]) / BUCKET
    tensors = load_file(bucket)
    for name in info.names:
        self.model.load_weights([(name, tensors[name])])
    bucket.unlink()  # read to its end


NCCLWeightTransferEngine.init_transfer_engine = lambda self, info: None
NCCLWeightTransferEngine.receive_weights = receive


class Extension:
    """As prime-rl, SkyRL and OpenRLHF have one."""

    def load_in_kernel_format(self, folder: str) -> None:
        """As prime-rl does what it has quantized: BF16 values into codes, where the shapes are the same."""
        for name, tensor in load_file(f"{folder}/model.safetensors").items():
            parameter = dict(self.model_runner.model.named_parameters()).get(name)
            if parameter is not None and parameter.shape == tensor.shape:
                parameter.data.copy_(tensor)

    def write_row(self, name: str) -> None:
        self.model_runner.model.get_parameter(name).data[5] = 3

    def load_one(self, name: str, tensor: torch.Tensor) -> None:
        """As OpenRLHF does, one call a tensor."""
        self.model_runner.model.load_weights([(name, tensor)])

    def fail(self) -> None:
        raise LookupError("a fault of its own")
