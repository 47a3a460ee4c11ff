"""What differs between vLLM versions, found by looking, never by version number; and where vLLM has no hook.

Named wrappers, each with its reason. All have run on vLLM 0.28 and 0.32, but follow_sleep with stand-ins only (CPU
workers do not sleep), and draw_in_one_pass on 0.28 with torch's ops; older APIs are probed for, not yet run.
| wrapper          | why                                                                     |
|------------------|-------------------------------------------------------------------------|
| attach_to_models | nothing tells a plugin of the whole model between construction and load |
| reload_in_place  | layerwise reload replaces parameters by meta tensors and buffers shards |
| refuse_requests  | an error in a forward pass ends the engine; refuse at the door instead  |
|                  | (there too: what old weights left in the prefix cache is forgotten)     |
| follow_sleep     | sleep mode unmaps the residents, level 2 forgets their bytes            |
| before_engines   | nothing lets a plugin add to the arguments that an engine starts with   |
| after_start      | nothing calls a plugin once an engine is ready, its graphs captured     |
| draw_in_one_pass | (sampling.py) nothing lets a plugin draw the tokens                     |
| time_workers     | (start_up.py) how long a start's parts took is told in log lines alone   |
"""

import logging
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import wraps

import torch
from vllm import _custom_ops  # noqa: F401  loads vLLM's kernels, one of which is looked for below
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase as ExpertsMethodBase
from vllm.model_executor.model_loader import base_loader
from vllm.platforms import current_platform

from ascend_quant.integrations.vllm import NAME
from ascend_quant.refit import Refit, RefitError, refusal
from ascend_quant.stacks import one_by_one

try:  # vLLM >= 0.28 holds the experts' weights in a layer of their own
    from vllm.model_executor.layers.fused_moe import RoutedExperts as EXPERTS_LAYER
except ImportError:
    from vllm.model_executor.layers.fused_moe import FusedMoE as EXPERTS_LAYER

try:
    from vllm.model_executor.layers.attention import Attention as AttentionLayer
except ImportError:  # vLLM 0.10
    from vllm.attention import Attention as AttentionLayer

try:  # latent attention is a layer of its own, which derives tensors from its weights; older ones are refused
    from vllm.model_executor.layers.attention import MLAAttention as MLA_LAYER
except ImportError:
    MLA_LAYER = None

# Where the experts are a layer of their own, their loader takes (E, N, K) stacks too.
TAKES_STACKED = EXPERTS_LAYER.__name__ != "FusedMoE"

# On CPUs vLLM's own unquantized layers pack their weights and throw the originals away; elsewhere they keep nothing.
PACKS_PLAIN_WEIGHTS = current_platform.is_cpu()

if hasattr(torch.ops._moe_C, "topk_softmax"):
    _select_experts = None
else:  # CPU builds before 0.32 lack the kernel of vLLM's router
    try:  # vLLM 0.28: routing in torch ops, inside its CPU experts
        from vllm.model_executor.layers.fused_moe.experts.cpu_moe import select_experts as _select_experts
    except ImportError:
        try:  # before 0.28
            from vllm.model_executor.layers.fused_moe.cpu_fused_moe import select_experts as _select_experts
        except ImportError:  # vLLM 0.32 has a CPU router of its own
            _select_experts = None

__all__ = [
    "EXPERTS_LAYER",
    "PACKS_PLAIN_WEIGHTS",
    "AttentionLayer",
    "ExpertsMethodBase",
    "install",
    "per_expert",
    "routes_by_itself",
    "select_experts",
]

logger = logging.getLogger(__name__)

MARK = "ascend_quant_wrapper"
SLEEPING_WORKERS = (  # and the deepest sleep after which a refit heals them
    ("vllm.v1.worker.gpu_worker", "Worker", 2),
    ("vllm_ascend.worker.worker", "NPUWorker", 1),  # level 2 loses expert maps and other plain attributes
    ("vllm_ascend.worker.worker_v1", "NPUWorker", 1),  # 0.10: level 2 loses buffers too
)


def install() -> None:
    """Put the wrappers in place, once a process."""
    if getattr(base_loader.initialize_model, MARK, False):
        return
    attach_to_models()
    reload_in_place()
    refuse_requests()
    after_start()


def routes_by_itself() -> bool:
    """Whether vLLM hands routed ids to the experts."""
    return _select_experts is None


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


def per_expert(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor as this vLLM's loaders take it: before 0.28 they know experts one by one only."""
    return iter([(name, tensor)]) if TAKES_STACKED else one_by_one(name, tensor)


def samples_with_logprobs(sample: Callable) -> bool:
    """Whether a sampler's `sample` gives log-probabilities beside the tokens; vLLM 0.10.1's gives tokens alone."""
    return "tuple" in str(sample.__annotations__.get("return")).lower()


def attach_to_models() -> None:
    """Attach to every model that is built with our quantization config."""

    def make(original: Callable) -> Callable:
        def initialize_model(vllm_config, *args, **kwargs):
            from ascend_quant.integrations.vllm.attach import attach
            from ascend_quant.integrations.vllm.config import AscendQuantConfig
            from ascend_quant.integrations.vllm.sampling import draw_in_one_pass

            ours = isinstance(vllm_config.quant_config, AscendQuantConfig)
            if ours:
                vllm_config.quant_config.choose(replica_of(vllm_config.parallel_config))
                add_pass(vllm_config)
            model = original(vllm_config, *args, **kwargs)
            if ours:
                teach_pass(model, vllm_config)
                attach(model, vllm_config)
                follow_sleep()
                if current_platform.is_cuda():
                    draw_in_one_pass()
            return model

        return initialize_model

    replace_everywhere(base_loader.initialize_model, make)


def add_pass(vllm_config) -> None:
    """Have our pass over the graphs of an INT8 engine on CUDA, unless the user has one: vLLM has room for one."""
    if not current_platform.is_cuda() or vllm_config.quant_config.scheme.name != "int8":
        return
    passes = vllm_config.compilation_config.inductor_compile_config
    if _pass_key() not in passes:
        from ascend_quant.integrations.vllm.fusion import FuseQuantization

        passes[_pass_key()] = FuseQuantization()


def teach_pass(model: torch.nn.Module, vllm_config) -> None:
    """Show the pass, if there is one of ours, the layers that it will meet in the model's graphs."""
    if current_platform.is_cuda():
        ours = vllm_config.compilation_config.inductor_compile_config.get(_pass_key())
        if hasattr(ours, "learn"):
            ours.learn(model)


def _pass_key() -> str:
    return getattr(current_platform, "pass_key", "post_grad_custom_post_pass")


def base_of_passes() -> type:
    """vLLM's class for passes over graphs."""
    try:
        from vllm.compilation.passes.inductor_pass import InductorPass
    except ImportError:  # older ones have it elsewhere
        from vllm.compilation.inductor_pass import InductorPass
    return InductorPass


def replica_of(parallel_config) -> int:
    """Which of vLLM's data-parallel replicas this process belongs to, from 0."""
    # since vLLM 0.14 the rank of a dense model's replica is 0, as if there were no others
    return getattr(parallel_config, "data_parallel_index", parallel_config.data_parallel_rank)


def before_engines(act: Callable[[object], None]) -> None:
    """Call `act` with vLLM's EngineArgs before an engine's configuration is made from them; once a process."""
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.create_engine_config
    if getattr(original, MARK, False):
        return

    @wraps(original)
    def create_engine_config(self, *args, **kwargs):
        act(self)
        return original(self, *args, **kwargs)

    setattr(create_engine_config, MARK, True)
    EngineArgs.create_engine_config = create_engine_config


def after_start() -> None:
    """Carry out the option `test_reload` in every new engine: its workers reload, while nobody waits for them yet."""
    from vllm.v1.engine.core import EngineCore

    original = EngineCore.__init__

    @wraps(original)
    def started(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if _wants_reloads(self.vllm_config.quant_config):
            from ascend_quant.integrations.vllm.reload_test import reload_twice

            self.model_executor.collective_rpc(reload_twice)

    EngineCore.__init__ = started


def _wants_reloads(config) -> bool:
    return getattr(config, "get_name", str)() == NAME and config.options.test_reload


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

    Weights reach the workers through `EngineCore.collective_rpc`, and leave them in sleep and come back in wake_up;
    after each such call the core asks them once whether they may serve. A worker in the caller's own process is asked
    directly, at every request.
    """
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.engine.llm_engine import LLMEngine

    _ask_afterwards(EngineCore)
    # engine core in a process of its own: the request finishes with an error
    _check_first(EngineCore, "preprocess_add_request")
    # engine core in the caller's process: the caller gets the error, before the engine has noted the request
    _check_first(LLMEngine, "add_request")


def state_of_worker(worker: object) -> tuple[int | None, str | None]:
    """How often this worker's weights came (None: not ours), and why it may not serve; runs on every worker."""
    refit = _refit_of_worker(worker)
    if refit is None:
        return None, None
    return refit.last_receipt.number if refit.last_receipt else 0, refit.why_not_servable()


def _ask_afterwards(engine_core: type) -> None:
    for name in ("collective_rpc", "sleep", "wake_up"):
        if hasattr(engine_core, name):
            setattr(engine_core, name, _asking(getattr(engine_core, name)))


def _asking(original: Callable) -> Callable:
    @wraps(original)
    def method(self, *args, **kwargs):
        if getattr(self.vllm_config.quant_config, "get_name", str)() != NAME:  # not our engine: not our business
            return original(self, *args, **kwargs)
        try:
            result = original(self, *args, **kwargs)
        except Exception as error:
            _ask(self, error)
            raise
        if isinstance(result, Future):  # sleep, once the running requests have ended
            result.add_done_callback(lambda done: _ask(self, done.exception()))
        else:
            _ask(self, None)
        return result

    return method


def _ask(core, error: BaseException | None) -> None:
    """Note whether the workers may serve after a call, which raised `error` if that is not None."""
    if error is not None and core.vllm_config.parallel_config.world_size > 1:
        # vLLM stops reading at the first rank that fails: the others' answers now lag one call behind
        core.ascend_quant_refusal = f"a call to its ranks failed ({error}); restart the engine"
        return
    states = core.model_executor.collective_rpc(state_of_worker)
    core.ascend_quant_refusal = next((why for _, why in states if why), None)
    _forget_prefixes(core, max(number or 0 for number, _ in states))


def _forget_prefixes(engine, number: int | None) -> None:
    """Empty the prefix cache of an engine or its core if new weights have come: old ones computed what it holds."""
    if number == getattr(engine, "ascend_quant_number", None):
        return
    if engine.reset_prefix_cache() is False:
        logger.warning("requests run during a refit: what old weights computed stays in the prefix cache till the next")
    else:
        engine.ascend_quant_number = number


def _check_first(owner: type, name: str) -> None:
    original = getattr(owner, name, None)
    if original is None:
        logger.warning("this vLLM has no %s.%s: bad weights are refused in compute_logits only", owner.__name__, name)
        return

    @wraps(original)
    def method(self, *args, **kwargs):
        driver = getattr(getattr(self, "model_executor", None), "driver_worker", None)
        worker = getattr(driver, "worker", None)
        number, why = None, getattr(self, "ascend_quant_refusal", None)
        if worker is not None:
            number, why = state_of_worker(worker)
        if why is not None:
            raise RefitError(refusal(why))
        if number is not None:
            _forget_prefixes(self, number)
        return original(self, *args, **kwargs)

    setattr(owner, name, method)


def follow_sleep() -> None:
    """Tell the refit when the memory of its residents goes and comes.

    Asleep, their addresses are unmapped: a kernel that touches them ends the process. Level 1 brings the bytes back,
    level 2 does not. Put in place with our first model, when the worker's module is loaded; CPU workers ignore sleep
    in methods of their own, which stay as they are.
    """
    for module, name, levels in SLEEPING_WORKERS:
        worker_class = getattr(sys.modules.get(module), name, None)
        if hasattr(worker_class, "sleep") and not hasattr(worker_class.sleep, MARK):
            _follow_sleep_of(worker_class, levels)


def _follow_sleep_of(worker_class: type, levels: int) -> None:
    sleep, wake_up = worker_class.sleep, worker_class.wake_up

    @wraps(sleep)
    def sleep_and_tell(self, level: int = 1) -> None:
        refit = _refit_of_worker(self)
        if refit is not None and level > levels:
            raise RefitError(f"sleep level {level}: this engine loses more than its weights in it; use level {levels}")
        if refit is not None:
            refit.falls_asleep(level)
        sleep(self, level)
        if refit is not None:
            refit.slept(level)

    @wraps(wake_up)
    def wake_up_and_tell(self, tags: list[str] | None = None) -> None:
        wake_up(self, tags)
        if (refit := _refit_of_worker(self)) is not None:
            refit.woke(tags)

    setattr(sleep_and_tell, MARK, True)
    worker_class.sleep, worker_class.wake_up = sleep_and_tell, wake_up_and_tell


def replace_everywhere(original: Callable, make: Callable[[Callable], Callable]) -> None:
    """Replace a vLLM function in its own module and in those that have imported it by name already."""
    wrapper = wraps(original)(make(original))
    setattr(wrapper, MARK, True)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "vllm" and getattr(module, original.__name__, None) is original:
            setattr(module, original.__name__, wrapper)


def _refit_of_worker(worker: object) -> Refit | None:
    return _refit(getattr(getattr(worker, "model_runner", None), "model", None))


def _refit(model: object) -> Refit | None:
    return getattr(model, "ascend_quant_refit", None)
