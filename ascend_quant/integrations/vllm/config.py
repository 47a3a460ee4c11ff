"""Which layer of a model gets which method.

    LLM(model, quantization="ascend_quant",
        hf_overrides={"quantization_config": {"quant_method": "ascend_quant", "scheme": "int8", "ignore": [..]}})

`ignore` takes vLLM's usual patterns: a layer's full name, or "re:" and a regular expression.
Embeddings, lm_head, norms and MoE routers always keep their dtype.
"""

from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from vllm.model_executor.layers.quantization.compressed_tensors.utils import should_ignore_layer
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

from ascend_quant.integrations.vllm.linear import Int8LinearMethod
from ascend_quant.integrations.vllm.moe import Int8ExpertsMethod, PlainExpertsMethod
from ascend_quant.integrations.vllm.plain import PlainEmbeddingMethod, PlainLinearMethod
from ascend_quant.integrations.vllm.versions import EXPERTS_LAYER
from ascend_quant.schemes import get_scheme

ROUTERS = ("gate", "router", "shared_expert_gate")


class AscendQuantConfig(QuantizationConfig):
    """Options of `quantization="ascend_quant"`.

    Args:
        scheme: a name from `ascend_quant.schemes`.
        ignore: layers that keep their dtype.

    Attributes:
        options: what `quantization_config` may hold.
        plain: our methods for layers that vLLM has built with its own, unquantized ones.
    """

    options: tuple[str, ...] = ("quant_method", "scheme", "ignore")
    plain: ClassVar[dict[type, type]] = {
        UnquantizedLinearMethod: PlainLinearMethod,
        UnquantizedEmbeddingMethod: PlainEmbeddingMethod,
    }

    def __init__(self, scheme: str = "int8", ignore: list[str] | None = None):
        super().__init__()
        if isinstance(ignore, str):  # list() would take it for names of one letter, and ignore nothing
            raise ValueError(f"ascend_quant option ignore={ignore!r}: give a list, [{ignore!r}]")
        self.scheme = get_scheme(scheme)
        self.ignore = list(ignore or [])

    def __repr__(self) -> str:
        return f"AscendQuantConfig(scheme={self.scheme.name}, ignore={self.ignore})"

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AscendQuantConfig":
        """From `quantization_config`; raises ValueError on an option that does not exist."""
        _, *options = cls.options
        if unknown := sorted(set(config) - set(cls.options)):
            raise ValueError(f"unknown ascend_quant option {unknown[0]!r}; the options are: {', '.join(options)}")
        return cls(**{option: config[option] for option in options if option in config})

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        if isinstance(layer, VocabParallelEmbedding):
            return PlainEmbeddingMethod()
        if isinstance(layer, LinearBase):
            return Int8LinearMethod() if self._quantizes(prefix) else PlainLinearMethod()
        if isinstance(layer, EXPERTS_LAYER):
            method = Int8ExpertsMethod if self._quantizes(prefix) else PlainExpertsMethod
            return method(layer.moe_config, prefix)
        return None

    def _quantizes(self, prefix: str) -> bool:
        if not self.scheme.quantized or prefix.rsplit(".", 1)[-1] in ROUTERS:
            return False
        return not should_ignore_layer(prefix, self.ignore, self.packed_modules_mapping)

    def get_name(self) -> str:
        return "ascend_quant"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []
