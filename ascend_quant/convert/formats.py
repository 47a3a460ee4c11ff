"""Checkpoint formats: the tensors of a quantized layer, and the quantization_config in config.json.

compressed-tensors   weight, weight_scale; int4: weight_packed, weight_scale, weight_shape. vLLM 0.28 reads them in
                     layers/quantization/compressed_tensors/schemes.
fp8                  weight, weight_scale_inv: DeepSeek's layout, which vLLM reads in layers/quantization/fp8.py; with
                     one scale per tensor, weight_scale.
modelslim            weight, weight_scale, weight_offset, which vllm-ascend 0.23 reads in
                     quantization/methods/w8a8_dynamic.py.

A scheme's file in `schemes/` defines which formats can store it, and in which tensors.
"""

from collections.abc import Sequence, Set
from typing import NamedTuple

import torch

from ascend_quant import oracle
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.schemes import SCHEMES, Scheme, definition_of
from ascend_quant.schemes.definition import FORMATS

PLAIN = "safetensors"  # the format of an unquantized checkpoint
BESIDE = (  # tensors besides a layer's weight, in any format
    *("weight_packed", "weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point", "weight_offset"),
    *("input_scale", "input_zero_point", "input_offset", "output_scale", "output_zero_point"),
    *("weight_g_idx", "quant_bias", "deq_scale"),
)


class Spec(NamedTuple):
    """A tensor of a file: safetensors' name of its dtype, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def format_of(scheme: Scheme, name: str | None = None, experts: bool = False) -> str:
    """Return the format `name`, or by default the first that supports `scheme`.

    Args:
        experts: whether the model has experts.

    Raises:
        UnregisteredScheme: the scheme is not registered.
        BadCheckpoint: there is no such format, or it does not support the scheme; the message names those that do.
    """
    stored = definition_of(scheme).stored
    holding = [format for format in FORMATS if stored is not None and format in stored.formats]
    fitting = [format for format in holding if not (experts and format in stored.no_experts)]
    if name is not None and name not in FORMATS:
        raise BadCheckpoint(f"unknown format {name!r}; this version writes: {', '.join(FORMATS)}")
    if not fitting:
        raise BadCheckpoint(
            f"scheme {scheme.name} is not a checkpoint format; to dequantize a checkpoint use --scheme bf16"
        )
    if name is not None and name not in fitting:
        with_experts = " with experts" if name in holding else ""
        held = f"format {name} holds {', '.join(held_by(name))}"
        raise BadCheckpoint(f"scheme {scheme.name}{with_experts} is written as {' or '.join(fitting)}; {held}")
    return name or fitting[0]


def held_by(format: str) -> list[str]:
    """Return the names of the schemes that a format supports, in order."""
    stored = {name: definition_of(scheme).stored for name, scheme in SCHEMES.items()}
    return sorted(name for name, one in stored.items() if one is not None and format in one.formats)


def tensors(format: str, scheme: Scheme, name: str, shape: tuple[int, int]) -> dict[str, Spec]:
    """Return the tensors of a quantized weight `name` (ending in .weight), (N, K): codes, scales, constants."""
    found = definition_of(scheme).tensors(format, name, *shape)
    return {tensor: Spec(*spec) for tensor, spec in found.items()}


def unchanging(name: str, spec: Spec, shape: tuple[int, int]) -> torch.Tensor:
    """Return the constant tensor of a layer: its shape (int4), or zeros (ModelSlim's offsets)."""
    if name.endswith("_shape"):
        return torch.tensor(shape, dtype=torch.int64)
    return torch.zeros(spec.shape, dtype=torch.float32)


def section(format: str, scheme: Scheme, patterns: Sequence[str], left: Sequence[str]) -> dict | None:
    """Return config.json's quantization_config; None for ModelSlim, which has a separate file.

    Args:
        patterns: patterns of `--ignore`.
        left: names of linear layers that are not quantized.
    """
    if format == "modelslim":
        return None
    if format == "fp8":  # vLLM compares names here, and supports no patterns
        blocks = {"weight_block_size": [oracle.BLOCK, oracle.BLOCK]} if scheme.shares == "block" else {}
        said = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
        return said | blocks | {"modules_to_not_convert": list(left)}
    definition, stored = definition_of(scheme), definition_of(scheme).stored
    number = {"num_bits": definition.bits, "type": stored.type, "symmetric": True}
    sizes = {"group_size": scheme.group} if scheme.group else {}
    sizes |= {"scale_dtype": stored.scale_dtype} if stored.scale_dtype else {}
    weights = number | {"strategy": stored.strategy, "dynamic": False} | sizes
    activations = None if stored.activations is None else number | stored.activations
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": stored.format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group | {"format": stored.format}},
        "ignore": list(dict.fromkeys([*patterns, *left])),
        "kv_cache_scheme": None,
    }


def description(quantized: Set[str], names: Sequence[str]) -> dict[str, str]:
    """Return quant_model_description.json: the type of every tensor, as vllm-ascend's modelslim_config.py reads it.

    Args:
        quantized: names of the tensors of quantized layers.
        names: names of all tensors.
    """
    types = {name: "W8A8_DYNAMIC" if name in quantized else "FLOAT" for name in names}
    return {"model_quant_type": "W8A8_DYNAMIC", "version": "1.0.0"} | types
