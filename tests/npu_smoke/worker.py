"""What vLLM's workers are asked on an NPU: the self-check's questions, and the formats of the weights."""

from collections import Counter

import torch_npu

from ascend_quant.selfcheck import worker


class Extension(worker.Extension):
    """vLLM's `worker_extension_cls`."""

    def smoke_formats(self) -> dict[str, int]:
        """How many parameters there are of each of torch_npu's formats."""
        model = self.model_runner.get_model()
        return dict(Counter(str(torch_npu.get_npu_format(one.data)) for one in model.parameters()))
