"""Which tensors may come to a rank of a vLLM model that has no place for them."""

from collections.abc import Mapping

from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from ascend_quant.engine.placeless import HEAD, Placeless, TiedHead
from ascend_quant.integrations.vllm.compat import EXPERTS_LAYER
from ascend_quant.integrations.vllm.inventory import number_of_experts
from ascend_quant.refit.resident import ResidentWeight


def placeless_of(model: nn.Module, residents: Mapping[str, ResidentWeight], vllm_config: VllmConfig) -> Placeless:
    """What may come to this rank of a model without a place."""
    layers = [module for module in model.modules() if isinstance(module, EXPERTS_LAYER)]
    experts = max(map(number_of_experts, layers), default=0)
    split = vllm_config.parallel_config.enable_expert_parallel
    return Placeless(_tied_head(model, residents, vllm_config), experts if split else 0)


def _tied_head(model: nn.Module, residents: Mapping[str, ResidentWeight], vllm_config: VllmConfig) -> TiedHead | None:
    config = vllm_config.model_config.hf_config.get_text_config()
    if not getattr(config, "tie_word_embeddings", False) or HEAD in residents:
        return None
    by_memory = {resident.data.data_ptr(): resident for resident in residents.values()}
    embeddings = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    tied = getattr(model, "lm_head", None)
    module = tied if tied in embeddings else embeddings[0]
    indices = module.shard_indices
    shape = (module.org_vocab_size, module.embedding_dim)
    resident = by_memory[module.weight.data_ptr()]
    return TiedHead(resident, shape, indices.org_vocab_start_index, indices.num_org_elements)
