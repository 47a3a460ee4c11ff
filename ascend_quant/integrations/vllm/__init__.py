"""vLLM plugin: `quantization="ascend_quant"`, found through the entry-point group `vllm.general_plugins`.

config.py    which layer gets which method, and the options a user may set
linear.py    linear layers, moe.py fused experts, plain.py what stays in its dtype
attach.py    the whole model: every parameter becomes resident, model.load_weights becomes a refit
buffers.py   what a quantized layer keeps
lying.py     weights that lie otherwise than a checkpoint has them (NPUs, int4), and their stand-ins for the loaders
mla.py       what vLLM derives from latent attention's weights, brought up to date in place
flashrl.py   FLASHRL_* variables: the same without an argument, reload_test.py what one of them asks for
sampling.py  tokens drawn in one pass over the logits, with vLLM's noise
loading.py   the one hook: every copy into a resident parameter, whichever of vLLM's loaders makes it
versions.py  what differs between vLLM versions, and the few places where vLLM offers no hook
"""

import logging
import os

from ascend_quant.refit import Refit, RefitError

__all__ = ["refit_of", "register"]

NAME = "ascend_quant"


def register() -> None:
    """Called by vLLM in every one of its processes; harmless when repeated."""
    from vllm.model_executor.layers import quantization
    from vllm.platforms import current_platform

    from ascend_quant.integrations.vllm import versions

    if current_platform.device_type == "npu":
        from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig as Config
    else:
        from ascend_quant.integrations.vllm.config import AscendQuantConfig as Config
    if NAME not in quantization.QUANTIZATION_METHODS:
        quantization.register_quantization_config(NAME)(Config)
    if current_platform.device_type == "npu":
        come_first(quantization.QUANTIZATION_METHODS)
        allow(current_platform.supported_quantization)
    versions.install()
    log_with_vllm()
    if any(variable.startswith("FLASHRL_") for variable in os.environ):
        from ascend_quant.integrations.vllm.flashrl import follow_variables

        follow_variables()


def come_first(methods: list[str]) -> None:
    """Be asked before vllm-ascend 0.10's own method, which claims every checkpoint that has a quantization_config."""
    methods.remove(NAME)
    methods.insert(0, NAME)


def allow(supported: list[str]) -> None:
    """Be on the platform's list, if it has one: newer vLLMs see to it themselves."""
    if supported and NAME not in supported:
        supported.append(NAME)


def log_with_vllm() -> None:
    """Show our lines (the scheme at start, a receipt a refit) where vLLM shows its own, from the same level on."""
    ours, theirs = logging.getLogger(NAME), logging.getLogger("vllm")
    if ours.level == logging.NOTSET:
        ours.setLevel(theirs.getEffectiveLevel())
    for handler in theirs.handlers:
        ours.addHandler(handler)  # adds each once


def refit_of(model: object) -> Refit:
    """The refit state of a vLLM model that runs with `quantization="ascend_quant"`.

    Raises:
        RefitError: the model was built without it.
    """
    refit = getattr(model, "ascend_quant_refit", None)
    if refit is None:
        raise RefitError(
            f"{type(model).__name__} was not built by the ascend_quant plugin; start the engine with "
            f'quantization="{NAME}" (and check that ascend-quant is installed where the engine runs)'
        )
    return refit
