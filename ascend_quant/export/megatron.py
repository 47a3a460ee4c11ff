"""Tensors of a Megatron checkpoint under the names of the Hugging Face model, one at a time.

    decoder.layers.self_attention.linear_qkv.weight   (layers, N, K)           q, k and v of all layers
    decoder.layers.3.mlp.linear_fc1.weight            (2 I, K)                 gate and up of a layer, if layers differ
    decoder.layers.mlp.experts.experts.linear_fc1.weight  (layers, E, 2 I, K)  gate and up of all experts

Megatron stores the heads by key-value group: q of the group, its k, its v, then the next group. Names are converted by
verl's converters (verl.models.mcore), which know each architecture. verl's `model_merger` is not used: it builds the
whole model in memory, which needs CUDA and TransformerEngine.
"""

import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from ascend_quant.convert.pieces import not_finite
from ascend_quant.export.torch_dist import TorchDist
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.schemes.tensors import FLOATS

LAYERS = "decoder.layers."
EXPERTS = ".experts.experts."
NOT_WEIGHTS = ("optimizer", "chained_", "rng_state", "opt_param_scheduler", "lr_scheduler", "rerun_state_machine_state")
ADAPTER = ".adapter."  # Megatron-Bridge's names of LoRA parameters contain this
KEPT = ".expert_bias"  # a correction in float32, which engines keep in float32
NEEDED = ("num_hidden_layers", "num_attention_heads", "vocab_size")  # keys of config.json
PADDED = ("embedding.word_embeddings.weight", "output_layer.weight")  # padded to a multiple


class Slice(NamedTuple):
    """A parameter: its name in a Megatron model on one rank, and its position in the checkpoint."""

    name: str
    key: str
    leading: tuple[int, ...]


class Names:
    """The conversion of Megatron's parameters to the Hugging Face model's tensors.

    Args:
        config: the model's config.json.

    Raises:
        BadCheckpoint: verl or Megatron-core is missing, verl does not know the architecture, or config.json lacks a
            size.
    """

    def __init__(self, config: Mapping[str, Any]):
        if missing := [key for key in NEEDED if config.get(key) is None]:
            raise BadCheckpoint(f"config.json has no {missing[0]}, which is needed to identify Megatron's tensors")
        self.config = config
        self._converter = _converter(config)

    def tensors(self, name: str, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of a parameter, in BF16 (the router's correction in its own dtype).

        Args:
            parameter: the parameter, or a meta tensor if only names and shapes are needed.

        Raises:
            BadCheckpoint: verl does not know the parameter, its shape is impossible, or its values are NaN or infinite,
                or become so in BF16.
        """
        if name in PADDED:
            parameter = self._unpadded(name, parameter)
        try:
            pairs = list(zip(*self._converter.convert_param(name, self._parts(name, parameter)), strict=True))
        except (NotImplementedError, AssertionError, LookupError, ValueError, TypeError, RuntimeError) as error:
            if isinstance(error, BadCheckpoint):
                raise
            raise BadCheckpoint(
                f"verl's converter of {self.config['architectures'][0]} does not know {name} of shape "
                f"{tuple(parameter.shape)} ({error!r:.200}); is --hf-model the model that was trained?"
            ) from error
        for one, tensor in pairs:
            rounded = (tensor if name.endswith(KEPT) else tensor.to(torch.bfloat16)).contiguous()
            if not rounded.is_meta and not rounded.isfinite().all():
                raise not_finite(one, tensor)
            yield one, rounded

    def _unpadded(self, name: str, w_VH: torch.Tensor) -> torch.Tensor:
        tokens = self.config["vocab_size"]
        rows = w_VH.shape[0] if w_VH.dim() else 0
        if rows < tokens:
            raise BadCheckpoint(
                f"{name} has {rows} rows, but the model's vocabulary has {tokens} tokens; is --hf-model the "
                "model that was trained?"
            )
        return w_VH[:tokens]

    def _parts(self, name: str, parameter: torch.Tensor) -> list[torch.Tensor]:
        """Return q, k and v; gate and up; or the parameter itself."""
        if re.search(r"linear_fc1\.weight\d*$", name):
            return list(parameter.chunk(2))
        if re.search(r"linear_qkv\.(weight|bias)$", name):
            return self._heads(name, parameter)
        return [parameter]

    def _heads(self, name: str, parameter: torch.Tensor) -> list[torch.Tensor]:
        queries = self.config["num_attention_heads"]
        groups = self.config.get("num_key_value_heads") or queries
        each = queries // groups
        if parameter.shape[0] % (groups * (each + 2)):
            raise BadCheckpoint(
                f"{name} has {parameter.shape[0]} rows, which cannot be split into {queries} query and {groups} "
                "key-value heads; is --hf-model the model that was trained?"
            )
        by_group = parameter.unflatten(0, (groups, each + 2, -1))
        return [part.flatten(0, 2) for part in by_group.split([each, 1, 1], dim=1)]


def _converter(config: Mapping[str, Any]) -> Any:
    try:
        from verl.models.mcore.registry import MODEL_WEIGHT_CONVERTER_REGISTRY, get_supported_model
    except ImportError as error:
        raise BadCheckpoint(
            f"exporting a Megatron checkpoint needs verl and megatron-core, for the tensor names: {error}"
        ) from error
    try:
        converter = MODEL_WEIGHT_CONVERTER_REGISTRY[get_supported_model(config["architectures"][0])]
    except (NotImplementedError, KeyError) as error:
        raise BadCheckpoint(
            f"verl has no tensor names for {config['architectures'][0]}; save the checkpoint with "
            "actor.checkpoint.save_contents=[hf_model] instead, which Megatron-Bridge writes"
        ) from error
    layers = SimpleNamespace(num_layers=config["num_hidden_layers"], mtp_num_layers=1)
    return converter(SimpleNamespace(**config), layers)


def slices(stored: TorchDist, config: Mapping[str, Any]) -> list[Slice]:
    """Yield every parameter, layer by layer.

    Raises:
        BadCheckpoint: a layer is missing or unexpected, or a weight is not a float or belongs to an adapter.
    """
    if adapters := [key for key in stored.sizes if ADAPTER in key]:
        raise BadCheckpoint(
            f"{stored.folder}: {adapters[0]} belongs to a LoRA adapter; merge model/huggingface/adapter into "
            "its model with PEFT (merge_and_unload), and use `ascend-quant convert`"
        )
    for key in filter(_is_weight, stored.sizes):
        if stored.dtypes[key] not in FLOATS:
            wanted = ", ".join(map(str, FLOATS))
            raise BadCheckpoint(
                f"{stored.folder}: {key} is {stored.dtypes[key]}; a weight's dtype must be one of {wanted}"
            )
    found = [one for key in stored.sizes if _is_weight(key) for one in _unstacked(key, stored.sizes[key])]
    layers = {_layer(one.name) for one in found} - {None}
    if layers != set(range(config["num_hidden_layers"])):
        raise BadCheckpoint(
            f"{stored.folder} has layers {_span(layers)}, but the model has {config['num_hidden_layers']} "
            "layers; is --hf-model the model that was trained?"
        )
    return sorted(found, key=lambda one: -1 if _layer(one.name) is None else _layer(one.name))


def _is_weight(key: str) -> bool:
    return not key.startswith(NOT_WEIGHTS) and "_extra_state" not in key


def _unstacked(key: str, size: tuple[int, ...]) -> Iterator[Slice]:
    """Yield the parameters that a stored tensor contains: of all layers, of all experts, or a single one."""
    if not key.startswith(LAYERS):
        yield Slice(key, key, ())
        return
    rest = key.removeprefix(LAYERS)
    single = re.match(r"\d+\.", rest)
    layers = [(int(single[0][:-1]), ())] if single else [(layer, (layer,)) for layer in range(size[0])]
    for layer, leading in layers:
        yield from _experts(f"{LAYERS}{layer}.{rest[single.end() :] if single else rest}", key, leading, size)


def _experts(name: str, key: str, leading: tuple[int, ...], size: tuple[int, ...]) -> Iterator[Slice]:
    if EXPERTS not in name:
        yield Slice(name, key, leading)
        return
    for expert in range(size[len(leading)]):  # Megatron's name on one rank: mlp.experts.linear_fc1.weight7
        yield Slice(f"{name.replace(EXPERTS, '.experts.')}{expert}", key, (*leading, expert))


def _layer(name: str) -> int | None:
    return int(name.removeprefix(LAYERS).split(".")[0]) if name.startswith(LAYERS) else None


def _span(layers: set[int]) -> str:
    return f"{min(layers)} to {max(layers)} ({len(layers)})" if layers else "none"
