"""vLLM plugin: `quantization="ascend_quant"`, found through the entry-point group `vllm.general_plugins`.

config.py        the quantization config: the method of each layer, by the user's options (engine/options.py)
layers/          methods of layers: W8A8 linear layers, experts, unquantized layers
attach.py        takes over a model: every parameter becomes resident, model.load_weights becomes a refit
inventory.py     a model's parameters and layers, with their checkpoint names
towers.py        multimodal models, of which only the language model is quantized; drafters.py drafters
building.py      the part of a model that is being built
skipping.py      tensors that vLLM's own loaders skip by design
buffers.py       parameters of a quantized layer; worker_refit.py finds the refit of a model or a worker
reload.py        vLLM's other ways to load weights; sleep.py sleep mode
serving/         requests, calls and HTTP errors while an engine may not serve
kv_cache/        a quantized KV cache: options, scales, its attention backend
graphs/          our pass over compiled graphs: norms and SiLU fused with quantization
exact/           option exact: the same bits in decode, prefill and trainer
sampling.py      sampling in one pass over the logits, with vLLM's noise
routed_experts.py  routed experts that an engine returns, if our expert layers route
flashrl.py       FLASHRL_* variables; reload_test.py runs the test that one of them requests
hooks.py         monkeypatches: functions of vLLM that are replaced at run time, why, and how to switch each off;
                 manual_patches.py lists replaced attributes of single objects and registries
contract.py      all names of vLLM that are used, by feature; refusing.py refuses versions that lack them
compat.py        differences between vLLM versions
"""

import logging
import os

from ascend_quant.engine.options import NAME
from ascend_quant.integrations.vllm.worker_refit import refit_of

__all__ = ["refit_of", "register"]

logger = logging.getLogger(__name__)


def register() -> None:
    """Register the plugin; vLLM calls this in each of its processes. Idempotent.

    If this vLLM lacks something that we need, `quantization="ascend_quant"` is refused; other engines are not affected.
    """
    from ascend_quant.integrations.vllm import contract, refusing

    problem = contract.problem_of("core")
    if problem is None:
        try:
            put_in_place()
        except (ImportError, AttributeError, TypeError) as error:  # something that the contract does not list
            logger.exception("the vLLM plugin ascend_quant could not be applied")
            problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        refusing.register(problem)


def put_in_place() -> None:
    """Register the quantization method and install the monkeypatches of vLLM.

    Raises:
        ImportError, AttributeError: something is missing; nothing of vLLM has been replaced then.
    """
    from vllm.model_executor.layers import quantization
    from vllm.platforms import current_platform

    from ascend_quant.integrations.vllm import hooks
    from ascend_quant.integrations.vllm.kv_cache.attention.register import register_attention
    from ascend_quant.integrations.vllm.layers import register_products
    from ascend_quant.integrations.vllm.serving import hooks as serving
    from ascend_quant.integrations.wrapping import install

    if current_platform.device_type == "npu":
        from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig as Config
    else:
        from ascend_quant.integrations.vllm.config import AscendQuantConfig as Config
    if NAME not in quantization.QUANTIZATION_METHODS:
        quantization.register_quantization_config(NAME)(Config)
    if current_platform.device_type == "npu":
        come_first(quantization.QUANTIZATION_METHODS)
        allow(current_platform.supported_quantization)
    register_products(current_platform.device_type)
    register_attention()
    log_with_vllm()
    wanted = (*hooks.AT_START, *serving.WITH_HTTP_SERVER)
    if any(variable.startswith("FLASHRL_") for variable in os.environ):
        from ascend_quant.integrations.vllm.flashrl import follow_variables

        if follow_variables():
            wanted += hooks.WITH_FLASHRL_VARIABLES
    install(wanted)


def come_first(methods: list[str]) -> None:
    """Register our method before vllm-ascend 0.10's own, which claims every checkpoint with a quantization_config."""
    methods.remove(NAME)
    methods.insert(0, NAME)


def allow(supported: list[str]) -> None:
    """Add our method to the platform's list of supported ones, if it has one; newer vLLMs do so themselves."""
    if supported and NAME not in supported:
        supported.append(NAME)


class LinesOfVllm(logging.Handler):
    """Log handler that forwards records to vLLM's handlers, unless the root logger shows them, as in verl."""

    def emit(self, record: logging.LogRecord) -> None:
        if any(type(one) is logging.StreamHandler and record.levelno >= one.level for one in logging.root.handlers):
            return
        for handler in logging.getLogger("vllm").handlers:
            if record.levelno >= handler.level and handler not in logging.root.handlers:  # pytest's handler is in both
                handler.handle(record)


def log_with_vllm() -> None:
    """Show our log records (the scheme at start, a receipt per refit) through vLLM's handlers, at the same level."""
    from ascend_quant.integrations.vllm.compat import set_up_logging

    set_up_logging()
    ours, theirs = logging.getLogger(NAME), logging.getLogger("vllm")
    if ours.level == logging.NOTSET:
        ours.setLevel(theirs.getEffectiveLevel())
    if theirs.handlers and not any(isinstance(handler, LinesOfVllm) for handler in ours.handlers):
        ours.addHandler(LinesOfVllm())
