"""Unsupported vLLM versions, which lack names that we need: `quantization="ascend_quant"` is refused, with the reason.

Such a vLLM is otherwise unchanged: no function is replaced, and engines with other quantization methods start as
before.
"""

import logging
from typing import Any

from ascend_quant.engine.options import NAME
from ascend_quant.refit import RefitError

logger = logging.getLogger(__name__)


def register(problem: str) -> None:
    """Make vLLM refuse our method for the reason `problem`; versions without a registry refuse it anyway."""
    logger.warning('quantization="%s" is not supported: %s', NAME, problem)
    try:
        from vllm.model_executor.layers.quantization import register_quantization_config
        from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
    except ImportError:
        return

    class RefusingConfig(QuantizationConfig):
        """A quantization config that cannot be created: an engine that requests it gets the reason as an error."""

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
            raise RefitError(f'quantization="{NAME}" is not supported by this vLLM: {problem}. See docs/install.md')

        @staticmethod
        def get_config_filenames() -> list[str]:
            return []

        @classmethod
        def get_min_capability(cls) -> int:
            return 0

        def get_name(self) -> str:
            return NAME

        def get_supported_act_dtypes(self) -> list[Any]:
            return []

        def get_quant_method(self, layer: Any, prefix: str) -> None:
            return None

    register_quantization_config(NAME)(RefusingConfig)
