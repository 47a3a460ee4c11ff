"""Monkeypatches of vLLM: every function that is replaced at run time, and when, for auditing.

HOOKS includes the rows for HTTP requests (serving/hooks.py) and for exact engines (exact/hooks.py). manual_patches.py
lists replaced attributes of single objects. Nothing else of vLLM is replaced.

If VLLM_PLUGINS excludes `ascend_quant`, nothing is patched. An engine with another `quantization` gets vLLM's own
behaviour from each of these functions. All have run on vLLM 0.28 and 0.32, except for sleep (run with stand-ins, since
CPU workers do not sleep), Sampler.sample (0.28, with torch's ops) and the hooks of skipping.py and towers.py (0.28).
Differences of older versions are probed, but have not been run.
"""

from collections.abc import Callable

from vllm.platforms import current_platform

from ascend_quant.integrations.vllm import (
    drafters,
    flashrl,
    reload,
    reload_test,
    routed_experts,
    sampling,
    skipping,
    sleep,
    towers,
)
from ascend_quant.integrations.vllm.attach import attach
from ascend_quant.integrations.vllm.compat import has_first_runner, replica_of
from ascend_quant.integrations.vllm.config import AscendQuantConfig
from ascend_quant.integrations.vllm.exact import hooks as exact
from ascend_quant.integrations.vllm.graphs.passes import add_pass, teach_pass
from ascend_quant.integrations.vllm.kv_cache import options as kv_cache
from ascend_quant.integrations.vllm.serving import hooks as serving
from ascend_quant.integrations.vllm.serving.hooks import ANOTHER, CORE
from ascend_quant.integrations.wrapping import Hook, install


def attaching(original: Callable) -> Callable:
    """Wrap `initialize_model`: our models are made refittable; the first one installs the other monkeypatches.

    A model that is built as part of another one (the language model of a vision model) is refitted together with it;
    drafters are left to vLLM.
    """
    outermost: list[object] = []

    def initialize_model(vllm_config, *args, **kwargs):
        if outermost or not isinstance(vllm_config.quant_config, AscendQuantConfig):
            return original(vllm_config, *args, **kwargs)
        if drafters.is_drafter(vllm_config, model_config := kwargs.get("model_config")):
            with drafters.building(model_config):
                return drafters.marked(original(vllm_config, *args, **kwargs))
        vllm_config.quant_config.choose(replica_of(vllm_config.parallel_config))
        add_pass(vllm_config)
        install(BEFORE_FIRST_MODEL)
        outermost.append(vllm_config)
        try:
            model = original(vllm_config, *args, **kwargs)
        finally:
            outermost.pop()
        teach_pass(model, vllm_config)
        attach(model, vllm_config)
        install(WITH_FIRST_MODEL)
        if vllm_config.quant_config.options.exact:
            install(exact.WITH_FIRST_EXACT_MODEL)
        if current_platform.is_cuda() and vllm_config.quant_config.scheme.quantized and has_first_runner(vllm_config):
            install(WITH_FIRST_RUNNER_ON_CUDA)
        return model

    return initialize_model


AT_START = (
    *serving.AT_START,
    Hook(
        ("vllm.model_executor.model_loader.base_loader:initialize_model",),
        attaching,
        why="no hook gives a plugin the whole model between its construction and its first load",
        versions="0.10 to 0.32",
        off=ANOTHER,
        everywhere=True,
    ),
    Hook(
        ("vllm.model_executor.model_loader.reload:initialize_layerwise_reload",),
        reload.opening,
        why="layerwise reload replaces parameters by meta tensors and buffers shards: a refit is done instead",
        versions="versions that have it; before, reload_weights is a plain load_weights",
        off=ANOTHER,
        optional=True,
        everywhere=True,
    ),
    Hook(
        ("vllm.model_executor.model_loader.reload:finalize_layerwise_reload",),
        reload.closing,
        why="the end of the same",
        versions="those that have it",
        off=ANOTHER,
        optional=True,
        everywhere=True,
    ),
    Hook(
        ("vllm.model_executor.model_loader.default_loader:DefaultModelLoader.get_all_weights",),
        reload.opened_first,
        why="reload_weights opens a checkpoint only after the reload has begun: after a wrong path the engine would "
        "refuse to serve",
        versions="those that have it: 0.10 to 0.32",
        off=ANOTHER,
        optional=True,
    ),
    Hook(
        (f"{CORE}.__init__",),
        reload_test.reloading,
        why="nothing calls a plugin after an engine is ready and its graphs are captured",
        versions="0.10 to 0.32",
        off="without the option test_reload (FLASHRL_TEST_RELOAD) it does nothing",
    ),
    Hook(
        ("vllm.engine.arg_utils:EngineArgs.create_model_config",),
        kv_cache.configuring,
        why="the cache's dtype is read before a model is built, and a quantization config is not told about it",
        versions="0.10 to 0.32",
        off=f"{ANOTHER}, or the option kv_cache left at auto",
        loaded=True,
    ),
)

WITH_FLASHRL_VARIABLES = (
    Hook(
        ("vllm.engine.arg_utils:EngineArgs.create_engine_config",),
        flashrl.configuring,
        why="no interface lets a plugin add to the arguments that an engine starts with",
        versions="0.10 to 0.32",
        off="no variable FLASHRL_CONFIG: then nothing is replaced",
    ),
)

# Installed by `attaching`, before a model is built.
BEFORE_FIRST_MODEL = (
    Hook(
        ("vllm.model_executor.models.interfaces:SupportsMultiModal._mark_tower_model",),
        towers.marking,
        why="a model's class tells only while it builds its layers which of them belong to a tower and keep their "
        "dtype",
        versions="0.28; without it a tower is quantized, or refused",
        off=ANOTHER,
        optional=True,
    ),
)

# Installed by `attaching`, once the worker's module has been imported; other modules are not imported.
WITH_FIRST_MODEL = (
    *(
        Hook(
            targets,
            listening,
            why="only a model's own loader knows which tensors of a checkpoint its class skips by design (MTP layers)",
            versions="0.28; not run on other versions, where such a tensor is an error",
            off=ANOTHER,
            optional=True,
            loaded=True,
            everywhere=True,
        )
        for targets, listening in skipping.LISTENERS
    ),
    Hook(
        ("vllm.model_executor.layers.fused_moe.routed_experts_capturer:bind_routed_experts_capturer",),
        routed_experts.recording,
        why="where vLLM's router has no kernel, our expert layers do the routing, which vLLM does not support when it "
        "returns routes",
        versions="0.28 on CPUs; 0.23 on GPUs and 0.32 note them in their router",
        off=f"{ANOTHER}, or no enable_return_routed_experts",
        optional=True,
        loaded=True,
        everywhere=True,
    ),
    *(
        Hook(
            (f"{module}:{worker}.sleep",),
            sleep.reporting_sleep(deepest),
            why="sleep mode unmaps the weights, and level 2 discards their bytes: the refit must know",
            versions="0.10 to 0.32, vllm-ascend 0.10 to 0.23",
            off=ANOTHER,
            optional=True,
            loaded=True,
        )
        for module, worker, deepest in sleep.SLEEPING_WORKERS
    ),
    Hook(
        tuple(f"{module}:{worker}.wake_up" for module, worker, _ in sleep.SLEEPING_WORKERS),
        sleep.reporting_wake_up,
        why="the end of the same",
        versions="0.10 to 0.32, vllm-ascend 0.10 to 0.23",
        off=ANOTHER,
        optional=True,
        loaded=True,
    ),
    Hook(
        (
            "vllm.v1.worker.gpu_worker:Worker.reload_weights",
            "vllm.v1.worker.gpu_worker:Worker.start_weight_update",
            "vllm.v1.worker.gpu_model_runner:GPUModelRunner.reload_weights",
            "vllm.v1.worker.gpu.model_runner:GPUModelRunner.reload_weights",
            "vllm.model_executor.model_loader.reload.inplace:reload_weights",
            "vllm_ascend.worker.worker:NPUWorker.start_weight_update",
        ),
        reload.reloading,
        why='weights "in kernel format" would bypass model.load_weights and be written into quantized buffers, by '
        "either model runner (attach.py refuses weight transfers that do so); and a path that failed would be used "
        "by the next reload",
        versions="workers from 0.23 on, both model runners, the function that they share from 0.32 on; vllm-ascend",
        off=ANOTHER,
        optional=True,
        loaded=True,
        everywhere=True,
        fits=reload.knows_kernel_format,
    ),
)

WITH_FIRST_RUNNER_ON_CUDA = (  # the second runner's own sampler is as fast
    Hook(
        ("vllm.v1.sample.sampler:Sampler.sample",),  # looked up at each call, since samplers are created before models
        sampling.drawing_in_one_pass,
        why="no interface lets a plugin draw the tokens",
        versions="the first model runner, which serves all models up to 0.22 and fewer and fewer up to 0.28",
        off=f"{ANOTHER}, or scheme bf16; vLLM itself samples requests that are greedy or use top_k, top_p or min_p",
    ),
)

HOOKS = (
    *(*AT_START, *serving.WITH_HTTP_SERVER, *WITH_FLASHRL_VARIABLES),
    *(*BEFORE_FIRST_MODEL, *WITH_FIRST_MODEL, *WITH_FIRST_RUNNER_ON_CUDA, *exact.WITH_FIRST_EXACT_MODEL),
)
