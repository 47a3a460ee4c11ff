"""Applies all exact layers to a transformers model. A single layer that differs from the engine's changes every token
of an INT8 policy, so unsupported layers are refused, never skipped silently."""

from typing import Any, NamedTuple

from torch import nn

from ascend_quant.exact import attention
from ascend_quant.exact.elementwise import ExactAngles, ExactMLP, ExactNorm, is_known_norm, is_silu
from ascend_quant.exact.experts import ExactExperts, ExactRouter, holds_experts, is_known_router
from ascend_quant.exact.linear import INT8, ROW_PARALLEL, ExactLinear
from ascend_quant.exact.modules import exact_class
from ascend_quant.kernels.engine_products import engine_product
from ascend_quant.qat.layers import layers_to_quantize
from ascend_quant.qat.modules import named_modules
from ascend_quant.schemes.layer_names import ROUTERS, Unquantized

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")  # model_types whose other layers have been compared
ROPES = ("default", "llama3")
RANKS = (1, 2)  # a sum of two terms does not depend on the order
REST = (nn.Embedding, nn.Linear)  # leaves that compute as the engine's do: embeddings, or heads


class NotExact(ValueError):
    """Raised for a model, a layer or a setting whose bits are not known to equal the engine's; the message names it."""


class Change(NamedTuple):
    """The new class of a module, and the number of engine ranks that split its input."""

    name: str
    module: nn.Module
    kind: type[nn.Module]
    ranks: int = 1


class Applied(NamedTuple):
    """The changed layers of a model.

    Attributes:
        scheme: "int8".
        quantized: names of the layers that compute W8A8 products.
        unquantized: names of linear layers that do not: heads and routers.
        in_engine: those that the engine must not quantize either, by its names: none.
        others: number of norms, routers, MLPs and rotary embeddings that use the engine's functions.
        ranks: the engine's tensor-parallel size, by which the layers split their inputs.
    """

    scheme: str
    quantized: list[str]
    unquantized: list[str]
    in_engine: Unquantized
    others: int
    ranks: int

    def __str__(self) -> str:
        kept = f"; not quantized: {', '.join(self.unquantized)}" if self.unquantized else ""
        return (
            f"attention, {self.others} norms, routers, MLPs and rotary embeddings, and {len(self.quantized)} layers "
            f"compute as an exact {self.scheme} engine of {self.ranks} tensor parallel ranks{kept}"
        )


def apply_exact(model: nn.Module, tensor_parallel: int = 1) -> Applied:
    """Make a transformers model compute the engine's INT8 policy. If anything is refused, the model is not changed.

    Args:
        model: the model, which must compute in BF16; before or after FSDP2 has wrapped it.
        tensor_parallel: the engine's tensor-parallel size.

    Raises:
        NotExact: a layer or setting is not known to give the engine's bits.
        NoProduct: no engine integration has registered its functions in this process.
    """
    _check_model(model, tensor_parallel)
    for product in ("attention", "route"):
        engine_product(product)
    found, unquantized, in_engine = layers_to_quantize(model, INT8)
    layers = [_layer(one.name, one.module, tensor_parallel) for one in found if one.name not in unquantized]
    taken = {change.module for change in layers}
    others = [
        change
        for name, module in named_modules([model])
        if module not in taken and (change := _other(name, module)) is not None
    ]
    if replaced := [change.name for change in (*layers, *others) if "forward" in vars(change.module)]:
        raise NotExact(
            f"{replaced[0]}: this module's forward has been replaced, which exact training does not support; "
            "disable what replaces it"
        )
    attention.register()
    for _, module, kind, ranks in (*layers, *others):
        module.__class__, module.ranks = kind, ranks
    model.set_attn_implementation(attention.NAME)
    names = [change.name for change in layers]
    return Applied(INT8.name, names, list(unquantized), in_engine, len(others), tensor_parallel)


def _check_model(model: nn.Module, tensor_parallel: int) -> None:
    config = model.config
    text = f"{type(model).__name__} (model_type {config.model_type!r})"
    if config.model_type not in FAMILIES:
        raise NotExact(f"{text}: not supported; exact training supports: {', '.join(FAMILIES)}")
    if hasattr(model, "peft_config"):
        raise NotExact(
            f"{text}: LoRA is not supported, as the engine does not quantize its products; train all weights"
        )
    if tensor_parallel not in RANKS:
        raise NotExact(
            f"tensor_parallel={tensor_parallel}: the engine's all-reduce has a fixed order of summation only for sizes "
            f"{RANKS}"
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in ROPES:
        raise NotExact(f"{text}: rope_type={rope!r}; exact training supports: {', '.join(ROPES)}")
    if config.attention_dropout:
        raise NotExact(f"{text}: attention_dropout={config.attention_dropout}: an engine applies no dropout; set 0")


def _layer(name: str, module: nn.Module, ranks: int) -> Change:
    """Return the change of a layer that the engine quantizes."""
    if type(module) is nn.Linear:
        cut = ranks if name.rpartition(".")[2] in ROW_PARALLEL else 1
        return Change(name, module, ExactLinear, _divisor(name, module.in_features, cut))
    if holds_experts(module) and is_silu(module.act_fn):
        intermediate = module.down_proj.shape[2]
        return Change(name, module, exact_class(ExactExperts, type(module)), _divisor(name, intermediate, ranks))
    raise NotExact(f"{name}: quantized layers of class {type(module).__name__} are not supported")


def _divisor(name: str, size: int, ranks: int) -> int:
    if size % ranks:
        raise NotExact(f"{name}: {size} input channels are not divisible by tensor_parallel={ranks}")
    return ranks


def _other(name: str, module: nn.Module) -> Change | None:
    """Return the change of another module; None for containers, and for modules that are already exact."""
    kind, leaf = type(module), name.rpartition(".")[2]
    if isinstance(module, (ExactNorm, ExactMLP, ExactRouter, ExactLinear, ExactExperts, ExactAngles)):
        raise NotExact(f"{name} is already exact: build a new model")
    if getattr(module, "sliding_window", None) is not None:
        raise NotExact(f"{name}: sliding_window={module.sliding_window}, which the engine's kernels treat differently")
    if kind.__name__.endswith("RMSNorm") and is_known_norm(module):
        return Change(name, module, exact_class(ExactNorm, kind))
    if leaf in ROUTERS and is_known_router(module):
        return Change(name, module, exact_class(ExactRouter, kind))
    if _is_mlp(module):
        return Change(name, module, exact_class(ExactMLP, kind))
    if kind.__name__.endswith("RotaryEmbedding"):
        return Change(name, module, exact_class(ExactAngles, kind))
    if isinstance(module, REST) or (leaf == "act_fn" and is_silu(module)):
        return None
    if next(module.children(), None) is None:
        raise NotExact(f"{name}: modules of class {kind.__name__} are not known to compute what the engine computes")
    return None


def _is_mlp(module: nn.Module) -> bool:
    layers: list[Any] = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    return all(isinstance(layer, nn.Linear) for layer in layers) and is_silu(module.act_fn)
