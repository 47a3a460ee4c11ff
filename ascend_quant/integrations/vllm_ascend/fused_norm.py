"""Fusion of a norm with the quantization of its output, for norms that vllm-ascend's patterns do not match.

vllm-ascend's compiled norm has an optional bias and a default epsilon of 1e-6, and traced graphs omit trailing default
arguments. Its pattern for that norm includes the bias argument, so it matches an epsilon of 1e-5 (the bias None is then
present) but not the 1e-6 of Qwen2.5 and Qwen3. The replacement of both operators is vllm-ascend's own, which it uses
for torch_npu's norm without a bias.
"""

import sys
from collections.abc import Callable

import torch

from ascend_quant.engine.options import NAME

EPSILON = 1e-6
THEIRS = "AddRMSNormDynamicQuantPattern"  # for torch_npu's norm


def is_known(original: Callable) -> bool:
    """Return whether this vllm-ascend has the class and the function on which the pattern is based."""
    theirs = sys.modules[original.__module__]
    return hasattr(theirs, THEIRS) and hasattr(theirs, "enable_custom_op")


def meeting_default_norms(original: Callable) -> Callable:
    """Wrap the fusion pass's `__init__`: for our engines it registers one more pattern, for vllm-ascend's own norm."""

    def __init__(self, vllm_config):
        original(self, vllm_config)
        theirs, config = sys.modules[original.__module__], vllm_config.quant_config
        if config is not None and config.get_name() == NAME and theirs.enable_custom_op():
            _pattern(getattr(theirs, THEIRS))(vllm_config, EPSILON).register(self.pattern_match_passes)

    return __init__


def _pattern(of_torch_npu: type) -> type:
    """Subclass vllm-ascend's pattern for torch_npu's norm so that it matches the compiled norm."""

    class AddRmsNormWithoutBias(of_torch_npu):
        def get_pattern(self) -> Callable:
            norm, quantize = torch.ops._C_ascend.npu_add_rms_norm_bias, torch.ops.npu.npu_dynamic_quant

            def pattern(rms_norm_input: torch.Tensor, residual: torch.Tensor, rms_norm_weight: torch.Tensor):
                normed, _, summed = norm(rms_norm_input, residual, rms_norm_weight, None, EPSILON)
                codes, scale = quantize(normed)
                return codes, scale, summed

            return pattern

    return AddRmsNormWithoutBias
