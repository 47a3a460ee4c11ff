"""Which layer of a model gets which method on an NPU; the options are those of integrations/vllm, and

nz: whether linear layers are kept in FRACTAL_NZ, the default, or plain. Experts always are in FRACTAL_NZ.
"""

from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

from ascend_quant.integrations.vllm.config import AscendQuantConfig
from ascend_quant.integrations.vllm.plain import PlainEmbeddingMethod
from ascend_quant.integrations.vllm.versions import EXPERTS_LAYER
from ascend_quant.integrations.vllm_ascend.experts import Int8NpuExpertsMethod
from ascend_quant.integrations.vllm_ascend.linear import Int8NpuLinearMethod
from ascend_quant.integrations.vllm_ascend.plain import NpuPlainLinearMethod
from ascend_quant.integrations.vllm_ascend.versions import AscendUnquantizedLinearMethod
from ascend_quant.resident import RefitError


class NpuQuantConfig(AscendQuantConfig):
    """Options of `quantization="ascend_quant"` on an NPU.

    Args:
        nz: keep linear layers in FRACTAL_NZ.
    """

    options = (*AscendQuantConfig.options, "nz")
    plain: ClassVar[dict[type, type]] = {
        UnquantizedLinearMethod: NpuPlainLinearMethod,
        AscendUnquantizedLinearMethod: NpuPlainLinearMethod,
        UnquantizedEmbeddingMethod: PlainEmbeddingMethod,
    }

    def __init__(self, scheme: str = "int8", ignore: list[str] | None = None, nz: bool = True):
        super().__init__(scheme, ignore)
        self.nz = nz
        self.quant_description: dict[str, Any] = {}  # vllm-ascend's norms look here for biases of ModelSlim's

    def get_quant_method(self, layer: torch.nn.Module, prefix: str, tid2eid=None) -> QuantizeMethodBase | None:
        if isinstance(layer, VocabParallelEmbedding):
            return PlainEmbeddingMethod()
        if isinstance(layer, LinearBase):
            return Int8NpuLinearMethod(self.nz) if self._quantizes(prefix) else NpuPlainLinearMethod()
        if isinstance(layer, EXPERTS_LAYER):
            if not self._quantizes(prefix):
                raise RefitError(f"{prefix}: on NPUs experts are served in int8 only; take them out of `ignore`")
            return Int8NpuExpertsMethod(layer.moe_config, prefix, tid2eid)
        return None
