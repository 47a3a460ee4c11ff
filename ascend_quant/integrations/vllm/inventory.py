"""The inventory of a vLLM model: its resident parameters, with the checkpoint names of their rows (q_proj in qkv_proj).

Layers that the model built without a quantization config get methods that store nothing derived from their weights.
Layers that would still store derived tensors are refused.
"""

from collections.abc import Iterator, Mapping

from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from ascend_quant.engine.layout import layouts_of
from ascend_quant.engine.unmatched import HEAD, TiedHead, UnmatchedWeights
from ascend_quant.integrations.vllm.compat import ENCODER_ATTENTION, EXPERTS_LAYER, MLA_LAYER, AttentionLayer
from ascend_quant.refit import RefitError, resident_class
from ascend_quant.refit.resident import ResidentWeight
from ascend_quant.schemes import Scheme
from ascend_quant.schemes.layer_names import Unquantized

DERIVES_NOTHING = (AttentionLayer, MLA_LAYER, ENCODER_ATTENTION)  # not handled by mla.py
LAYERS = (LinearBase, VocabParallelEmbedding, EXPERTS_LAYER)
LINEAR = (ReplicatedLinear, ColumnParallelLinear, MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear)
# loaders that copy rows unchanged; they narrow a tensor to a rank's part without reading all of it
LINEAR_LOADERS = {
    loader for kind in LINEAR for name in ("weight_loader", "weight_loader_v2") if (loader := getattr(kind, name, None))
}


def make_plain(model: nn.Module, plain: Mapping[type, type]) -> None:
    """Give unquantized layers our plain methods.

    Args:
        plain: maps vLLM's methods to ours.

    Raises:
        RefitError: a layer would keep tensors derived from its weights; the message names it.
    """
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if type(method) in plain:
            module.quant_method = plain[type(method)]()
        elif isinstance(module, LAYERS) and not type(method).__module__.startswith("ascend_quant."):
            _refuse(name, module, f"it computes with {type(method).__name__}")
        if type(module) is ENCODER_ATTENTION and getattr(module, "fp8_enabled", False):
            _refuse(
                name, module, "it computes in FP8 with scales that refits do not update; remove mm_encoder_attn_dtype"
            )
        derives = hasattr(module, "process_weights_after_loading") and type(module) not in DERIVES_NOTHING
        if derives or (type(module) is AttentionLayer and getattr(module, "use_mla", False)):
            _refuse(name, module, "after loading it derives tensors from its weights, which refits would not update")


def layer_names(model: nn.Module) -> Iterator[str]:
    """Yield the names of the layers with weights, as used by `ignore`."""
    return (_known_as(name, module) for name, module in model.named_modules() if isinstance(module, LAYERS))


def unquantized_in(model: nn.Module, residents: Mapping[str, ResidentWeight], scheme: Scheme) -> Unquantized:
    """Return the linear layers and experts that are not quantized; none if the scheme does not quantize."""
    coded = {name.rpartition(".")[0] for name, resident in residents.items() if resident.codes}
    plain = {
        _known_as(name, module)
        for name, module in model.named_modules()
        if isinstance(module, (LinearBase, EXPERTS_LAYER)) and name not in coded
    }
    return Unquantized.of(scheme.name, plain if scheme.quantized else ())


def _known_as(name: str, module: nn.Module) -> str:
    """Return the name of a layer; experts may be a module within the layer that has their name."""
    return getattr(module, "layer_name", name) if isinstance(module, EXPERTS_LAYER) else name


def number_of_experts(layer: nn.Module) -> int:
    """Return the number of experts of a layer over all ranks, without redundant copies."""
    return getattr(layer.moe_config, "num_logical_experts", layer.moe_config.num_experts)


def _refuse(name: str, module: nn.Module, why: str) -> None:
    raise RefitError(f"layer {name!r} of type {type(module).__name__} is not supported: {why}")


def residents_of(model: nn.Module) -> dict[str, ResidentWeight]:
    """Return every parameter of the model once (tied ones under their first name), scales with their weights."""
    residents: dict[str, ResidentWeight] = {}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        parameters = dict(module.named_parameters(recurse=False))
        for leaf, parameter in parameters.items():
            if id(parameter) in seen or _is_scale(leaf, parameters):
                continue
            seen.add(id(parameter))
            name = f"{prefix}.{leaf}" if prefix else leaf
            residents[name] = _resident(name, leaf, module, parameters, model)
            residents[name].wholes = _wholes(leaf, module, residents[name].row_count)
    return residents


def _wholes(leaf: str, module: nn.Module, rows: int) -> list[tuple[int, int]]:
    """Return `ResidentWeight.wholes`."""
    layout, parameter = layouts_of(module).get(leaf), getattr(module, leaf)
    loader = getattr(parameter if layout is None else layout.stand_in, "weight_loader", None)
    if not isinstance(module, LINEAR) or getattr(loader, "__func__", None) not in LINEAR_LOADERS:
        return []
    length = 1 if leaf == "bias" else module.input_size
    if not isinstance(module, ColumnParallelLinear):
        return [(rows, rows * length)]
    sizes = module.output_partition_sizes
    copies = [1] + [module.num_kv_head_replicas] * 2 if isinstance(module, QKVParallelLinear) else [1] * len(sizes)
    if len(copies) != len(sizes):  # another part besides q, k and v
        return []
    return [(size, size * module.tp_size // of * length) for size, of in zip(sizes, copies, strict=True)]


def _is_scale(leaf: str, parameters: dict) -> bool:
    return leaf.endswith("_scale") and leaf.removesuffix("_scale") in parameters


def _resident(name: str, leaf: str, module: nn.Module, parameters: dict, model: nn.Module) -> ResidentWeight:
    parts = list(_parts(name, leaf, module, getattr(model, "packed_modules_mapping", {})))
    if (layout := layouts_of(module).get(leaf)) is not None:
        data, length = layout.stand_in.data, _whole_length(leaf, module, layout.stand_in.shape[-1])
        kind = resident_class(layout.scheme)
        return kind(name, data, layout.scale, length, parts, layout.weight_layout, layout.copies)
    data = parameters[leaf].data
    scale = parameters.get(f"{leaf}_scale")
    if scale is None:
        return ResidentWeight(name, data, parts, padded=isinstance(module, VocabParallelEmbedding))
    kind = resident_class(module.quant_method.scheme)
    return kind(name, data, scale.data, _whole_length(leaf, module, data.shape[-1]), parts)


def _whole_length(leaf: str, module: nn.Module, length: int) -> int:
    """Return the row length K of the unsharded weight."""
    if isinstance(module, LinearBase):
        return module.whole_input_size
    parallel = module.moe_config.moe_parallel_config
    return length * parallel.tp_size if leaf == "w2_weight" else length


def _parts(name: str, leaf: str, module: nn.Module, packed: dict[str, list[str]]) -> Iterator[tuple[str, int]]:
    """Yield (checkpoint name, rows) of each tensor of a fused parameter."""
    if isinstance(module, EXPERTS_LAYER) and leaf in ("w13_weight", "w2_weight"):
        yield from _expert_parts(name.rsplit(".", 1)[0], leaf, module)
        return
    layer = name.removesuffix(f".{leaf}")
    owner, _, layer_leaf = layer.rpartition(".")
    sizes = getattr(module, "output_partition_sizes", [])
    shards = packed.get(layer_leaf, [])
    if isinstance(module, LinearBase) and len(sizes) == len(shards) > 1:
        yield from ((f"{owner}.{shard}.{leaf}", size) for shard, size in zip(shards, sizes, strict=True))


def _expert_parts(layer: str, leaf: str, module: nn.Module) -> Iterator[tuple[str, int]]:
    base = getattr(module, "layer_name", layer)
    expert_map = getattr(module, "expert_map", None)
    layout = layouts_of(module).get(leaf)
    count, rows = (getattr(module, leaf) if layout is None else layout.stand_in).shape[:2]
    experts = range(count) if expert_map is None else (expert_map >= 0).nonzero().view(-1).tolist()
    for expert in experts:
        if leaf == "w2_weight":
            yield f"{base}.{expert}.down_proj.weight", rows
        else:
            yield f"{base}.{expert}.gate_proj.weight", rows // 2
            yield f"{base}.{expert}.up_proj.weight", rows // 2


def unmatched_of(
    model: nn.Module, residents: Mapping[str, ResidentWeight], vllm_config: VllmConfig
) -> UnmatchedWeights:
    """Return the tensors that a trainer may send without a parameter here: a tied head, other ranks' experts."""
    layers = [module for module in model.modules() if isinstance(module, EXPERTS_LAYER)]
    experts = max(map(number_of_experts, layers), default=0)
    split = vllm_config.parallel_config.enable_expert_parallel
    return UnmatchedWeights(_tied_head(model, residents, vllm_config), experts if split else 0)


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
