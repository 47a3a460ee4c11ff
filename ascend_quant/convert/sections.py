"""What config.json says about a quantized checkpoint, and ModelSlim's description beside it."""

from collections.abc import Sequence, Set

from ascend_quant import oracle
from ascend_quant.schemes import Scheme

KINDS = {
    "int8": ("int", 8, "int-quantized"),
    "fp8": ("float", 8, "float-quantized"),
    "int4": ("int", 4, "pack-quantized"),
}
STRATEGIES = {"row": "channel", "tensor": "tensor", "group": "group"}


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
    kind, bits, stored = KINDS[scheme.codes]
    weights = {
        "num_bits": bits,
        "type": kind,
        "symmetric": True,
        "strategy": STRATEGIES[scheme.shares],
        "dynamic": False,
    }
    weights |= {"group_size": scheme.group} if scheme.group else {}
    per_token = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": "token", "dynamic": True}
    activations = None if scheme.codes == "int4" else per_token
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": stored,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group | {"format": stored}},
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
