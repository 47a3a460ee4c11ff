"""vLLM's quantization config: the quantization method of each layer.

    LLM(model, quantization="ascend_quant",
        hf_overrides={"quantization_config": {"quant_method": "ascend_quant", "scheme": "int8", "ignore": [..]}})

All options: options.py. `ignore` takes vLLM's usual patterns: a layer's full name, or "re:" and a regular expression;
names are the engine's or a checkpoint's, see `ascend_quant.schemes.layer_names`. `profile` is a file written by
`ascend-quant profile`; with `frozen_scales` its scales are used, otherwise every refit computes its own. Embeddings,
lm_head, norms, MoE routers, the towers of other modalities and drafters always keep their dtype.
"""

import logging
from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.platforms import current_platform

from ascend_quant.engine.options import Options
from ascend_quant.integrations.vllm import drafters, towers
from ascend_quant.integrations.vllm.compat import EXPERTS_LAYER
from ascend_quant.integrations.vllm.contract import CONTRACT, problem_of
from ascend_quant.integrations.vllm.inventory import layer_names, make_plain, number_of_experts
from ascend_quant.integrations.vllm.layers.linear import QuantizedLinearMethod
from ascend_quant.integrations.vllm.layers.moe import PlainExpertsMethod, QuantizedExpertsMethod
from ascend_quant.integrations.vllm.layers.plain import (
    Float32HeadMethod,
    PlainEmbeddingMethod,
    PlainLinearMethod,
    RouterMethod,
)
from ascend_quant.kv_cache.scales import Buffers
from ascend_quant.refit import RefitError
from ascend_quant.schemes import get_scheme
from ascend_quant.schemes.layer_names import ROUTERS, Ignored, Layer, PatternError, experts_of, layer_of

logger = logging.getLogger(__name__)


class AscendQuantConfig(QuantizationConfig):
    """Quantization config of `quantization="ascend_quant"`.

    Args:
        options: fields of `Options`.

    Attributes:
        Options: the dataclass of the allowed options.
        PLAIN: maps vLLM's unquantized methods to ours.
    """

    Options: ClassVar[type[Options]] = Options
    PLAIN: ClassVar[dict[type, type]] = {UnquantizedLinearMethod: PlainLinearMethod}

    def __init__(self, **options: Any):
        super().__init__()
        self._set(self.Options.of(options))

    def _set(self, options: Options) -> None:
        self.options, self.scheme, self.ignored = options, get_scheme(options.scheme), Ignored(options.ignore)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options})"

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AscendQuantConfig":
        """Create the config from `quantization_config`; raise ValueError for an unknown option."""
        return cls(**config)

    @property
    def embedding(self) -> type:
        """Quantize method of embeddings and heads."""
        return Float32HeadMethod if self.options.lm_head_fp32 else PlainEmbeddingMethod

    def make_plain(self, model: torch.nn.Module) -> None:
        """Replace vLLM's own unquantized methods of layers with ours; see `inventory.make_plain`."""
        make_plain(model, {**self.PLAIN, UnquantizedEmbeddingMethod: self.embedding})

    def buffers_of(self, model: torch.nn.Module) -> Buffers | None:
        """Return the scale buffers of a KV cache that has no dtype of vLLM: none on this platform."""
        return None

    @classmethod
    def why_no_cache(cls, asked: str) -> str | None:
        """Return why the option kv_cache is not supported on a platform without such a vLLM dtype."""
        return f"it is not supported on {current_platform.device_type}"

    def choose(self, rank: int) -> None:
        """Select the options of data-parallel replica `rank`.

        Raises:
            RefitError: this vLLM lacks a kernel of their scheme.
        """
        self._set(self.options.of_replica(rank))
        feature = f"{self.scheme.name.partition('_')[0]} on NVIDIA"
        if current_platform.is_cuda() and feature in CONTRACT and (problem := problem_of(feature)):
            raise RefitError(f"scheme {self.scheme.name}: {problem}; choose another scheme, or another vLLM version")

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        if drafters.is_building():
            return drafters.method_of(layer)
        if isinstance(layer, VocabParallelEmbedding):
            return self.embedding()
        if isinstance(layer, LinearBase):
            if self.quantizes(prefix):
                return QuantizedLinearMethod(self.scheme)
            # bf16 computes as vLLM does; a tower may be built without a device
            faster = self.scheme.quantized and _is_router(prefix) and not towers.is_building()
            return RouterMethod(self.options.exact) if faster else PlainLinearMethod()
        if isinstance(layer, EXPERTS_LAYER):
            if self.quantizes(prefix, number_of_experts(layer)):
                return QuantizedExpertsMethod(layer.moe_config, prefix, self.scheme)
            return PlainExpertsMethod(layer.moe_config, prefix)
        return None

    def check_ignored(self, model: torch.nn.Module, has_draft: bool) -> None:
        """Check that each pattern of `ignore` matches a layer of the model, so that a misspelt one is an error.

        Args:
            has_draft: whether a draft model is also built, whose layers the pattern may match.

        Raises:
            RefitError: a pattern matches nothing; the message names it.
        """
        try:
            for name in layer_names(model):
                self.ignored.meet(name)
            self.ignored.check_used(type(model).__name__)
        except PatternError as error:
            if not has_draft:
                raise RefitError(f"ascend_quant option {error}") from None
            logger.warning("ascend_quant option %s", error)

    def quantizes(self, prefix: str, experts: int = 0) -> bool:
        """Return whether a layer is quantized.

        Args:
            experts: number of experts in the layer, over all ranks; 0 for a linear layer.

        Raises:
            RefitError: `ignore` matches only part of the layer.
        """
        layer = experts_of(prefix, experts) if experts else layer_of(prefix, self.packed_modules_mapping)
        ignored = self._ignores(layer)
        return self.scheme.quantized and not _is_router(prefix) and not ignored and not towers.is_building()

    def _ignores(self, layer: Layer) -> bool:
        try:
            return self.ignored.covers(layer)
        except PatternError as error:
            raise RefitError(f"ascend_quant option {error}") from None

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
