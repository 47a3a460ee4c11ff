"""Drafters of speculative decoding (EAGLE heads, MTP layers): vLLM's own layers in their own dtype, without refits.

The model verifies all tokens, so a stale drafter only costs speed. Layers that a drafter shares with the model
(embedding, head) are the model's, and follow each refit. A complete draft model has its own vLLM config, and is not
handled by this plugin.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

from ascend_quant.integrations.vllm.building import Building

logger = logging.getLogger(__name__)

_building = Building()


def is_drafter(vllm_config: VllmConfig, model_config: Any) -> bool:
    """Return whether the model to be built with the main model's vLLM config is a drafter."""
    return model_config is not None and model_config is not vllm_config.model_config


@contextmanager
def building(model_config: Any) -> Iterator[None]:
    """Context in which a drafter is built and `is_building` is true; logs that this model is not quantized."""
    names = ", ".join(getattr(model_config, "architectures", None) or ["a drafter"])
    logger.info("the drafter %s keeps its dtype; refits change only the weights that it shares with the model", names)
    with _building.part():
        yield


def is_building() -> bool:
    """Return whether a drafter is being built."""
    return bool(_building)


def marked(drafter: nn.Module) -> nn.Module:
    """Mark a drafter, so that `refit_of` can tell why it has no refits."""
    drafter.ascend_quant_drafts = True
    return drafter


def method_of(layer: nn.Module) -> UnquantizedLinearMethod | None:
    """Return vLLM's own linear method for a drafter's layer; None if vLLM selects it itself."""
    return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None
