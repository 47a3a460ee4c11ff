"""What differs between vLLM versions, found by looking, never by version number; and where vLLM has no hook.

Named wrappers, each with its reason. All have run on vLLM 0.28 and 0.32; older APIs are probed for, not yet run.
| wrapper          | why                                                                     |
|------------------|-------------------------------------------------------------------------|
| attach_to_models | nothing tells a plugin of the whole model between construction and load |
| reload_in_place  | layerwise reload replaces parameters by meta tensors and buffers shards |
| refuse_requests  | an error in a forward pass ends the engine; refuse at the door instead  |
"""

import logging
import sys
from collections.abc import Callable
from functools import wraps

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase as ExpertsMethodBase
from vllm.model_executor.model_loader import base_loader

from ascend_quant.integrations.vllm import NAME
from ascend_quant.refit import Refit, RefitError, refusal

try:  # vLLM >= 0.28 holds the experts' weights in a layer of their own
    from vllm.model_executor.layers.fused_moe import RoutedExperts as EXPERTS_LAYER
except ImportError:
    from vllm.model_executor.layers.fused_moe import FusedMoE as EXPERTS_LAYER

try:
    from vllm.model_executor.layers.attention import Attention as AttentionLayer
except ImportError:  # vLLM 0.10
    from vllm.attention import Attention as AttentionLayer

try:  # vLLM 0.28: routing in torch ops, inside its CPU experts
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import select_experts as _select_experts
except ImportError:
    try:  # before 0.28
        from vllm.model_executor.layers.fused_moe.cpu_fused_moe import select_experts as _select_experts
    except ImportError:  # vLLM 0.32 has a CPU router of its own
        _select_experts = None

__all__ = ["EXPERTS_LAYER", "AttentionLayer", "ExpertsMethodBase", "install", "routes_by_itself", "select_experts"]

logger = logging.getLogger(__name__)

MARK = "ascend_quant_wrapper"


def install() -> None:
    """Put the wrappers in place, once a process."""
    if getattr(base_loader.initialize_model, MARK, False):
        return
    attach_to_models()
    reload_in_place()
    refuse_requests()


def routes_by_itself() -> bool:
    """Whether vLLM hands routed ids to the experts; CPU builds before 0.32 lack the kernel for it."""
    return _select_experts is None or hasattr(torch.ops._moe_C, "topk_softmax")


def select_experts(
    layer: torch.nn.Module, x: torch.Tensor, router_logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Routing weights and expert ids (M, T) with vLLM's own torch ops, from float32 logits."""
    return _select_experts(
        hidden_states=x,
        router_logits=router_logits.float(),
        top_k=layer.top_k,
        use_grouped_topk=layer.use_grouped_topk,
        renormalize=layer.renormalize,
        topk_group=layer.topk_group,
        num_expert_group=layer.num_expert_group,
        custom_routing_function=layer.custom_routing_function,
        scoring_func=layer.scoring_func,
        e_score_correction_bias=layer.e_score_correction_bias,
    )


def attach_to_models() -> None:
    """Attach to every model that is built with our quantization config."""

    def make(original: Callable) -> Callable:
        def initialize_model(vllm_config, *args, **kwargs):
            from ascend_quant.integrations.vllm.attach import attach
            from ascend_quant.integrations.vllm.config import AscendQuantConfig

            model = original(vllm_config, *args, **kwargs)
            if isinstance(vllm_config.quant_config, AscendQuantConfig):
                attach(model, vllm_config)
            return model

        return initialize_model

    replace_everywhere(base_loader.initialize_model, make)


def reload_in_place() -> None:
    """reload_weights and the weight-update API open and close a refit instead of vLLM's layerwise reload.

    Our residents take shards in place; layerwise reload would move them to the meta device, keep every shard until
    its layer is complete, and (with reused bucket buffers) replay overwritten bytes.
    """
    try:
        from vllm.model_executor.model_loader import reload
    except ImportError:  # before layerwise reload: reload_weights is a plain load_weights
        return

    def make_initialize(original: Callable) -> Callable:
        def initialize_layerwise_reload(model, *args, **kwargs):
            refit = _refit(model)
            return original(model, *args, **kwargs) if refit is None else refit.open()

        return initialize_layerwise_reload

    def make_finalize(original: Callable) -> Callable:
        def finalize_layerwise_reload(model, *args, **kwargs):
            refit = _refit(model)
            return original(model, *args, **kwargs) if refit is None else refit.close()

        return finalize_layerwise_reload

    replace_everywhere(reload.initialize_layerwise_reload, make_initialize)
    replace_everywhere(reload.finalize_layerwise_reload, make_finalize)


def refuse_requests() -> None:
    """Turn a request away while the engine may not serve; the engine lives on and heals with the next refit.

    Weights reach the workers through `EngineCore.collective_rpc`; after each such call the core asks them once
    whether they may serve. A worker in the caller's own process is asked directly, at every request.
    """
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.engine.llm_engine import LLMEngine

    _ask_afterwards(EngineCore)
    # engine core in a process of its own: the request finishes with an error
    _check_first(EngineCore, "preprocess_add_request")
    # engine core in the caller's process: the caller gets the error, before the engine has noted the request
    _check_first(LLMEngine, "add_request")


def refusal_of_worker(worker: object) -> str | None:
    """Why this worker may not serve; runs on every worker."""
    refit = _refit(getattr(getattr(worker, "model_runner", None), "model", None))
    return None if refit is None else refit.why_not_servable()


def _ask_afterwards(engine_core: type) -> None:
    original = engine_core.collective_rpc

    def ask(core) -> None:
        answers = core.model_executor.collective_rpc(refusal_of_worker)
        core.ascend_quant_refusal = next((answer for answer in answers if answer), None)

    @wraps(original)
    def collective_rpc(self, *args, **kwargs):
        if getattr(self.vllm_config.quant_config, "get_name", str)() != NAME:  # not our engine: not our business
            return original(self, *args, **kwargs)
        try:
            result = original(self, *args, **kwargs)
        except Exception as error:
            if self.vllm_config.parallel_config.world_size == 1:
                ask(self)
            else:  # vLLM stops reading at the first rank that fails: the others' answers now lag one call behind
                self.ascend_quant_refusal = f"a call to its ranks failed ({error}); restart the engine"
            raise
        ask(self)
        return result

    engine_core.collective_rpc = collective_rpc


def _check_first(owner: type, name: str) -> None:
    original = getattr(owner, name, None)
    if original is None:
        logger.warning("this vLLM has no %s.%s: bad weights are refused in compute_logits only", owner.__name__, name)
        return

    @wraps(original)
    def method(self, *args, **kwargs):
        driver = getattr(getattr(self, "model_executor", None), "driver_worker", None)
        worker = getattr(driver, "worker", None)
        why = getattr(self, "ascend_quant_refusal", None) if worker is None else refusal_of_worker(worker)
        if why is not None:
            raise RefitError(refusal(why))
        return original(self, *args, **kwargs)

    setattr(owner, name, method)


def replace_everywhere(original: Callable, make: Callable[[Callable], Callable]) -> None:
    """Replace a vLLM function in its own module and in those that have imported it by name already."""
    wrapper = wraps(original)(make(original))
    setattr(wrapper, MARK, True)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "vllm" and getattr(module, original.__name__, None) is original:
            setattr(module, original.__name__, wrapper)


def _refit(model: object) -> Refit | None:
    return getattr(model, "ascend_quant_refit", None)
