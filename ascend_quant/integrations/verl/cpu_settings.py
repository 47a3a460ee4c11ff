"""Settings that verl needs on CPUs, checked before anything starts; otherwise verl would fail minutes later.

FSDP1 requires a GPU (`sync_module_states`), and verl 0.9.1 selects the FSDP version only by `fsdp_config`. It pins the
memory of FSDP2's reference model, which requires a GPU, too, so that CPUs have no KL term. vLLM's CPU engine does not
support sleep mode, which verl enables by default. verl's workers take their device from `trainer.device`. A Ray cluster
started by verl has one CPU per core and no accelerator; verl's actors need one CPU each, and an accelerator by default,
so a run would wait forever.
"""

import os
from collections.abc import Iterator
from typing import Any

ACTOR, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout"))
VARIABLE = "VERL_PLATFORM"
RAY, ADDRESS, CURRENT = "ray_kwargs.ray_init", "RAY_ADDRESS", "/tmp/ray/ray_current_cluster"
CPUS = 16  # verl's actors are mostly idle


class CpuSettingsError(ValueError):
    """Raised for settings that cannot work on a machine without an accelerator."""


def check(config: Any, reference: bool, starts_ray: bool = False) -> None:
    """Raise one error, before anything starts, that lists all settings to add to the command.

    Args:
        config: verl's whole configuration.
        reference: whether the run has a reference policy.
        starts_ray: whether verl would start Ray on this machine, if it is not running.

    Raises:
        CpuSettingsError: naming the settings and their values.
    """
    for_cpus = config.get("recipe", {}).get("stack") == "cpu"
    if os.environ.get(VARIABLE) != "cpu":  # verl reads it when it is imported
        if for_cpus:
            raise CpuSettingsError(f"the recipe's stack is cpu: start the command with {VARIABLE}=cpu")
        if config.trainer.device != "cpu":
            return
    wanted = [*_wanted(config, reference)]
    if starts_ray and will_start_ray(config):
        wanted += _wanted_of_ray(config)
    if wanted:
        raise CpuSettingsError(f"verl's default settings are for GPUs; on a CPU, also set {' '.join(wanted)}")


def will_start_ray(config: Any) -> bool:
    """Return whether verl will start a Ray of its own on this machine, since none is running or named."""
    named = ADDRESS in os.environ or config.ray_kwargs.get("ray_init", {}).get("address")
    return not named and not os.path.exists(CURRENT)


def _wanted(config: Any, reference: bool) -> Iterator[str]:
    if config.trainer.device != "cpu":
        yield "trainer.device=cpu"
    parts = config.actor_rollout_ref
    if parts.actor.strategy in ("fsdp", "fsdp2") and parts.actor.fsdp_config.strategy != "fsdp2":
        yield f"{ACTOR}.strategy=fsdp2 {ACTOR}.fsdp_config.strategy=fsdp2"
    if reference:
        yield f"{ACTOR}.use_kl_loss=False algorithm.use_kl_in_reward=False"
    if parts.rollout.free_cache_engine:
        yield f"{ROLLOUT}.free_cache_engine=False"
    if parts.rollout.get("enable_sleep_mode", True):
        yield f"++{ROLLOUT}.enable_sleep_mode=False"


def _wanted_of_ray(config: Any) -> Iterator[str]:
    given, apart = config.ray_kwargs.ray_init, config.get("rollout") or config.actor_rollout_ref.rollout
    if not given.get("num_gpus"):  # a group that has only a name
        places = [(part.get("nnodes") or 0, part.get("n_gpus_per_node") or 0) for part in (config.trainer, apart)]
        yield f"+{RAY}.num_gpus={sum(nodes * devices for nodes, devices in places)}"
    if not given.get("num_cpus") and (os.cpu_count() or 1) < CPUS:
        yield f"{RAY}.num_cpus={CPUS}"
