"""In an engine's workers: what its cache does with keys and values beside rounding them.

That is the scales of a whole layer, and the balance of the keys' channels; `Extension` is given to vLLM's workers.
"""

from typing import Any

import torch

from ascend_quant.integrations.vllm import refit_of, register
from ascend_quant.refit.key_balance import told

register()  # where the package lies in PYTHONPATH alone, vLLM's processes do not find it by its entry point


class Extension:
    """Methods that vLLM adds to its worker class."""

    def mismatch_cache_scales(self) -> list[tuple[float, float]]:
        """Of the keys and of the values of each attention layer, in the model's order; 1 where the cache has none."""
        return scales_of(self.model_runner.get_model())

    def mismatch_key_balance(self) -> dict[str, Any] | None:
        """What `refit.key_balance.told` says of this rank's keys; None where the cache has no use for it."""
        balance = refit_of(self.model_runner.get_model()).balance
        return None if balance is None else told(balance.factors.values(), balance.why_not)


def scales_of(model: torch.nn.Module) -> list[tuple[float, float]]:
    """vLLM keeps them as buffers of its attention layers."""
    layers = [module for module in model.modules() if hasattr(module, "_k_scale") and hasattr(module, "_v_scale")]
    return [(float(layer._k_scale), float(layer._v_scale)) for layer in layers]
