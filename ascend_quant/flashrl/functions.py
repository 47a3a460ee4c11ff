"""The function names of FlashRL (`--fn`, YAML files, FLASHRL_CONFIG), and the scheme that each selects.

Names and schemes differ: FlashRL's fp8 is scheme fp8_tensor here, and its fp8_channel is scheme fp8.
"""

from collections.abc import Mapping
from dataclasses import dataclass

INT8_KEYS = {"load_format": "auto", "distributed_executor_backend": "external_launcher"}
FP8_CHECKPOINT_KEYS = {
    "load_format": "dummy",
    "distributed_executor_backend": "external_launcher",
    "module_attribute_to_preserve": ["workspace"],
}
FP8_KEYS = {**FP8_CHECKPOINT_KEYS, "load_format": "auto", "quantization": "fp8"}
BF16_KEYS = {"load_format": "dummy", "distributed_executor_backend": "external_launcher"}

NO_CHECKPOINT = (
    "as in FlashRL, which needs an FP8 checkpoint and its profile to know the layers; here neither is needed, and "
    "`ignore` names the layers that keep their dtype"
)


@dataclass(frozen=True)
class Function:
    """The meaning of one of FlashRL's function names.

    Attributes:
        scheme: a name from `ascend_quant.schemes`.
        meaning: description of the function, and its difference from FlashRL's, in one line.
        flashrl_keys: keys that FlashRL's `setup` writes besides `fn`, so that FlashRL can use our files.
        flashrl_needs_profile: whether FlashRL cannot run it without a quantized model and its profile.
    """

    scheme: str
    meaning: str
    flashrl_keys: Mapping[str, object]
    flashrl_needs_profile: bool = False


FUNCTIONS = {
    "int8": Function(
        "int8",
        "scheme int8: scales are recomputed at every refit; FlashRL keeps those of its profile (as frozen_scales does "
        "here) and needs one",
        INT8_KEYS,
        True,
    ),
    "int8_fast": Function(
        "int8", "int8; FlashRL's version skips vLLM's post-load step, which no refit runs", INT8_KEYS, True
    ),
    "int8_wo_prune": Function("int8", "int8, as in FlashRL: another name for it", INT8_KEYS, True),
    "int8_prune": Function(
        "int8",
        "int8 without pruning: FlashRL zeroes the norm weight of a channel whose codes are all 0; here it stays "
        "and adds exactly 0 to every product, but counts in the absmax of a token's activation scale",
        INT8_KEYS,
        True,
    ),
    "fp8": Function(
        "fp8_tensor",
        "scheme fp8_tensor: one scale per tensor of the checkpoint, computed at every refit, in place, with checks and "
        "receipts; FlashRL's version uses vLLM's online FP8, where q, k and v (gate and up) share one scale",
        FP8_KEYS,
    ),
    "fp8_vllm": Function("fp8_tensor", "fp8, as in FlashRL: another name for it", FP8_KEYS),
    "fp8_fast": Function(
        "fp8_tensor", "fp8; FlashRL's version skips vLLM's post-load step, which no refit runs", FP8_KEYS
    ),
    "fp8_vllm_fast": Function("fp8_tensor", "fp8_fast, as in FlashRL: another name for it", FP8_KEYS),
    "fp8_tensor": Function(
        "fp8_tensor",
        f"scheme fp8_tensor: one scale per tensor of the checkpoint, {NO_CHECKPOINT}",
        FP8_CHECKPOINT_KEYS,
        True,
    ),
    "fp8_channel": Function(
        "fp8", f"scheme fp8: one scale per output channel, {NO_CHECKPOINT}", FP8_CHECKPOINT_KEYS, True
    ),
    "bf16": Function(
        "bf16",
        "scheme bf16: no quantization, refits with checks and receipts; FlashRL's version does not change the weights "
        "either",
        BF16_KEYS,
    ),
}
