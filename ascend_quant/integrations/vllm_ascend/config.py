"""vLLM's quantization config on NPUs: the quantization method of each layer. The options are those of
integrations/vllm, and

nz: whether linear layers are stored in FRACTAL_NZ (default) or ND. Experts have vllm-ascend's format.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from ascend_quant.engine.options import NAME, Options
from ascend_quant.integrations.vllm import drafters
from ascend_quant.integrations.vllm.compat import EXPERTS_LAYER, AttentionLayer
from ascend_quant.integrations.vllm.config import AscendQuantConfig
from ascend_quant.integrations.vllm.inventory import number_of_experts
from ascend_quant.integrations.vllm_ascend import c8
from ascend_quant.integrations.vllm_ascend.c8_refusals import why_engine_has_none
from ascend_quant.integrations.vllm_ascend.compat import AscendConfig, AscendUnquantizedLinearMethod
from ascend_quant.integrations.vllm_ascend.experts import Int8NpuExpertsMethod
from ascend_quant.integrations.vllm_ascend.hooks import HOOKS
from ascend_quant.integrations.vllm_ascend.linear import Int8NpuLinearMethod, NpuPlainLinearMethod
from ascend_quant.integrations.vllm_ascend.refusals import refuse
from ascend_quant.integrations.wrapping import install
from ascend_quant.kernels.npu.ops import check_pair
from ascend_quant.kv_cache.scales import Buffers
from ascend_quant.refit import RefitError


@dataclass(frozen=True)
class NpuOptions(Options):
    """Options of the quantization config on an NPU.

    Attributes:
        nz: whether to store linear layers in FRACTAL_NZ.
    """

    nz: bool = True


class NpuQuantConfig(AscendQuantConfig, AscendConfig):
    """Quantization config of `quantization="ascend_quant"` on an NPU."""

    Options = NpuOptions
    PLAIN: ClassVar[dict[type, type]] = {
        UnquantizedLinearMethod: NpuPlainLinearMethod,
        AscendUnquantizedLinearMethod: NpuPlainLinearMethod,
    }

    def __init__(self, **options: Any):
        check_pair()
        super().__init__(**options)

    def _set(self, options: Options) -> None:
        super()._set(options)
        if self.scheme.codes not in (None, "int8"):
            raise RefitError(f"scheme {self.scheme.name} is not supported on NPUs: use int8 or bf16")
        if options.kv_cache != "auto" and (why := why_engine_has_none(options.kv_cache)):
            raise RefitError(f"kv_cache={options.kv_cache}: {why}; set kv_cache=auto")
        self.enable_c8_quant = options.kv_cache == "int8"  # read by vllm-ascend's attention and its graphs

    def choose(self, rank: int) -> None:
        super().choose(rank)
        if self.scheme.codes is not None:
            install(HOOKS)

    @classmethod
    def why_no_cache(cls, asked: str) -> str | None:
        return why_engine_has_none(asked)

    def buffers_of(self, model: torch.nn.Module) -> Buffers | None:
        return c8.buffers_of(model) if self.enable_c8_quant else None

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, **rest) -> str | None:
        """Claim checkpoints with our method, since vllm-ascend 0.10 claims all that nobody has claimed before."""
        return NAME if hf_quant_cfg.get("quant_method") == NAME else None

    def get_quant_method(self, layer: torch.nn.Module, prefix: str, tid2eid=None) -> QuantizeMethodBase | None:
        if drafters.is_building():
            raise RefitError(
                f"{prefix}: drafters that use the model's quantization config (such as MTP layers) are not "
                "supported on NPUs; remove speculative_config"
            )
        if isinstance(layer, VocabParallelEmbedding):
            return self.embedding()
        if isinstance(layer, LinearBase):
            refuse(prefix, experts=False)
            return Int8NpuLinearMethod(self.options.nz) if self.quantizes(prefix) else NpuPlainLinearMethod()
        if isinstance(layer, EXPERTS_LAYER):
            refuse(prefix, experts=True)
            if not self.quantizes(prefix, number_of_experts(layer)):
                raise RefitError(f"{prefix}: on NPUs experts are supported only in int8; remove them from `ignore`")
            return Int8NpuExpertsMethod(layer.moe_config, prefix, tid2eid)
        if self.enable_c8_quant and isinstance(layer, AttentionLayer):
            return c8.C8Method(prefix)
        return None
