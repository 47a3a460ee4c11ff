"""What prime-rl 06ccf0f calls for a new checkpoint (its files inference/vllm/worker/filesystem.py, weight_transfer.py).

No package index has it. A worker imports this module, as it would theirs, when this project's hooks are in place.
"""

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


class Worker:
    def update_from(self, folder: str) -> None:
        runner = self.model_runner
        runner.model_config.model = folder
        tensors = get_model_loader(runner.load_config).get_all_weights(runner.model_config, runner.model)
        with torch.device("cpu"), set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(runner.model)
            runner.model.load_weights(tensors)
            finalize_layerwise_reload(runner.model, runner.model_config)
