"""Which layer of a model gets which method.

    LLM(model, quantization="ascend_quant",
        hf_overrides={"quantization_config": {"quant_method": "ascend_quant", "scheme": "int8", "ignore": [..]}})

All options: options.py. `ignore` takes vLLM's usual patterns: a layer's full name, or "re:" and a regular expression.
`profile` is a file that `ascend-quant profile` has written; with `frozen_scales` its scales are used, otherwise every
refit finds its own.
Embeddings, lm_head, norms and MoE routers always keep their dtype.
"""

from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from vllm.model_executor.layers.quantization.compressed_tensors.utils import should_ignore_layer
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

from ascend_quant.integrations.vllm.inventory import make_plain
from ascend_quant.integrations.vllm.linear import QuantizedLinearMethod
from ascend_quant.integrations.vllm.moe import PlainExpertsMethod, QuantizedExpertsMethod
from ascend_quant.integrations.vllm.options import Options
from ascend_quant.integrations.vllm.plain import (
    Float32HeadMethod,
    PlainEmbeddingMethod,
    PlainLinearMethod,
    RouterMethod,
)
from ascend_quant.integrations.vllm.versions import EXPERTS_LAYER
from ascend_quant.left_alone import ROUTERS
from ascend_quant.schemes import get_scheme


class AscendQuantConfig(QuantizationConfig):
    """`quantization="ascend_quant"`.

    Args:
        options: fields of `Options`.

    Attributes:
        Options: what `quantization_config` may hold.
        PLAIN: our methods for layers that vLLM has built with its own, unquantized ones.
    """

    Options: ClassVar[type[Options]] = Options
    PLAIN: ClassVar[dict[type, type]] = {UnquantizedLinearMethod: PlainLinearMethod}

    def __init__(self, **options: Any):
        super().__init__()
        self._set(self.Options.of(options))

    def _set(self, options: Options) -> None:
        self.options, self.scheme = options, get_scheme(options.scheme)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options})"

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AscendQuantConfig":
        """From `quantization_config`; raises ValueError on an option that does not exist."""
        return cls(**config)

    @property
    def embedding(self) -> type:
        """The method of embeddings and heads."""
        return Float32HeadMethod if self.options.lm_head_fp32 else PlainEmbeddingMethod

    def make_plain(self, model: torch.nn.Module) -> None:
        """Give layers that vLLM has built with its own unquantized methods ours instead; see `inventory.make_plain`."""
        make_plain(model, {**self.PLAIN, UnquantizedEmbeddingMethod: self.embedding})

    def choose(self, rank: int) -> None:
        """Take the options of data-parallel replica `rank`."""
        self._set(self.options.of_replica(rank))

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        if isinstance(layer, VocabParallelEmbedding):
            return self.embedding()
        if isinstance(layer, LinearBase):
            if self._quantizes(prefix):
                return QuantizedLinearMethod(self.scheme)
            return RouterMethod() if _is_router(prefix) else PlainLinearMethod()
        if isinstance(layer, EXPERTS_LAYER):
            if self._quantizes(prefix):
                return QuantizedExpertsMethod(layer.moe_config, prefix, self.scheme)
            return PlainExpertsMethod(layer.moe_config, prefix)
        return None

    def _quantizes(self, prefix: str) -> bool:
        if not self.scheme.quantized or _is_router(prefix):
            return False
        return not should_ignore_layer(prefix, self.options.ignore, self.packed_modules_mapping)

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


def _is_router(prefix: str) -> bool:
    return prefix.rsplit(".", 1)[-1] in ROUTERS
