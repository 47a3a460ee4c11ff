"""Multi-head latent attention (DeepSeek, Moonlight, Kimi): vLLM computes with two tensors derived from kv_b_proj.

Every refit updates them in place. If kv_b_proj is not quantized they are views of it, and need no update.
"""

from collections.abc import Callable
from functools import wraps

import torch
from torch import nn

from ascend_quant.integrations.vllm.compat import MLA_LAYER
from ascend_quant.refit import RefitError

DERIVED = ("W_UV", "W_UK_T")


def follow(model: nn.Module, dtype: torch.dtype) -> Callable[[], None]:
    """Make vLLM derive the tensors in place; return the function that updates all layers, once they have been derived.

    Args:
        dtype: dtype of the model.

    Raises:
        RefitError: raised by the function: this vLLM derives other tensors too.
    """
    layers = [] if MLA_LAYER is None else [module for module in model.modules() if type(module) is MLA_LAYER]
    for layer in layers:
        layer.process_weights_after_loading = _in_place(layer)

    def refresh() -> None:
        for layer in layers:
            if hasattr(layer, DERIVED[0]):
                layer.process_weights_after_loading(dtype)

    return refresh


def _in_place(layer: nn.Module) -> Callable[[torch.dtype], None]:
    original = layer.process_weights_after_loading

    @wraps(original)
    def derive(act_dtype: torch.dtype) -> None:
        before = {name: getattr(layer, name) for name in DERIVED if hasattr(layer, name)}
        known = set(vars(layer))
        original(act_dtype)
        others = [name for name in set(vars(layer)) - known - set(DERIVED) if torch.is_tensor(vars(layer)[name])]
        if others or not hasattr(layer, DERIVED[0]):
            raise RefitError(
                f"{layer.layer_name}: this vLLM derives {others or 'nothing known'} from kv_b_proj, which "
                "refits do not support; see docs/install.md for versions that work"
            )
        for name, old in before.items():
            old.copy_(getattr(layer, name))
            setattr(layer, name, old)

    return derive
