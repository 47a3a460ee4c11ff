"""Routing replay (R3), the engine's side: the experts of each token, returned by vLLM's enable_return_routed_experts.

A trainer may replay them (verl's router_replay.mode=R3), so that both policies use the same experts. vLLM records them
in its router. If the router has no kernel (CPU builds before 0.32), expert layers do the routing, and vLLM refuses to
start; then our expert layers record them.
"""

from collections.abc import Callable
from functools import partial

from ascend_quant.integrations.vllm.layers.moe import ExpertsMethod


def recording(original: Callable) -> Callable:
    """Wrap `bind_routed_experts_capturer`: our expert layers that route report the chosen experts to the capturer."""

    def bind_routed_experts_capturer(model, capturer):
        runners = [one for one in model.modules() if isinstance(getattr(one, "_quant_method", None), ExpertsMethod)]
        alone = [runner for runner in runners if runner._quant_method.is_monolithic]
        if not alone:
            return original(model, capturer)
        for runner in alone:
            runner._quant_method.record = partial(capturer.capture, runner.layer_id)
        return None

    return bind_routed_experts_capturer
