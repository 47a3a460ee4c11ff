"""Registration of our pass over the graphs that vLLM compiles (fusion.py), in vLLM's only slot for custom passes."""

import torch
from vllm.platforms import current_platform


def add_pass(vllm_config) -> None:
    """Add our pass for the graphs of an INT8 engine on CUDA, unless the user has one: vLLM supports only one."""
    if not current_platform.is_cuda() or vllm_config.quant_config.scheme.name != "int8":
        return
    passes = vllm_config.compilation_config.inductor_compile_config
    if _pass_key() not in passes:
        from ascend_quant.integrations.vllm.graphs.fusion import (
            FuseQuantization,  # needs Triton, which not every platform has
        )

        passes[_pass_key()] = FuseQuantization()


def teach_pass(model: torch.nn.Module, vllm_config) -> None:
    """Pass the model's layers to our pass, if it is installed."""
    if current_platform.is_cuda():
        ours = vllm_config.compilation_config.inductor_compile_config.get(_pass_key())
        if hasattr(ours, "learn"):
            ours.learn(model)


def _pass_key() -> str:
    return getattr(current_platform, "pass_key", "post_grad_custom_post_pass")
