"""In an engine's workers: the scales that its cache has for a whole layer; `Extension` is given to vLLM's workers."""

import torch

from ascend_quant.integrations.vllm import register

register()  # where the package lies in PYTHONPATH alone, vLLM's processes do not find it by its entry point


class Extension:
    """Methods that vLLM adds to its worker class."""

    def mismatch_cache_scales(self) -> list[tuple[float, float]]:
        """Of the keys and of the values of each attention layer, in the model's order; 1 where the cache has none."""
        return scales_of(self.model_runner.get_model())


def scales_of(model: torch.nn.Module) -> list[tuple[float, float]]:
    """vLLM keeps them as buffers of its attention layers."""
    layers = [module for module in model.modules() if hasattr(module, "_k_scale") and hasattr(module, "_v_scale")]
    return [(float(layer._k_scale), float(layer._v_scale)) for layer in layers]
