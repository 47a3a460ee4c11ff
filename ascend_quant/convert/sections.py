"""What config.json says about a quantized checkpoint, and ModelSlim's description beside it."""

from collections.abc import Sequence, Set

from ascend_quant import oracle
from ascend_quant.schemes import Scheme, definition_of


def section(format: str, scheme: Scheme, patterns: Sequence[str], left: Sequence[str]) -> dict | None:
    """config.json's quantization_config; None for ModelSlim, which has a file of its own.

    Args:
        patterns: `--ignore`.
        left: linear layers that are not quantized, by name.
    """
    if format == "modelslim":
        return None
    if format == "fp8":  # vLLM compares names alone here: no patterns
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
    """quant_model_description.json: the type of every tensor, as vllm-ascend's modelslim_config.py looks it up.

    Args:
        quantized: tensors of quantized layers.
        names: all tensors.
    """
    types = {name: "W8A8_DYNAMIC" if name in quantized else "FLOAT" for name in names}
    return {"model_quant_type": "W8A8_DYNAMIC", "version": "1.0.0"} | types
