"""Validation of the attention implementation in a run's settings, with one error if verl cannot train with it.

verl accepts any attention name of transformers. Its sequence parallelism (Ulysses) is patched only into transformers'
flash attention path: with `sdpa` each rank would silently attend only to its own part of the sequences. Read in verl
0.9.1: models/transformers/monkey_patch.py (the exchange), workers/config/model.py (the name), utils/model.py (value
heads).
"""

import os
from importlib.util import find_spec
from typing import Any

PACKED = "torch_varlen"  # packed_attention.py's name in transformers
LIBRARY = "ascend_quant.integrations.verl.training.packed_attention"
NAME_KEY = "actor_rollout_ref.model.override_config.attn_implementation"
LIBRARY_KEY = "actor_rollout_ref.model.external_lib"
ULYSSES = "ulysses_sequence_parallel_size"  # ranks that share a sequence
ULYSSES_KEYS = tuple(
    f"actor_rollout_ref.{role}.{part}{ULYSSES}" for role in ("actor", "ref") for part in ("", "fsdp_config.")
)
WHAT_TO_SET = f"{LIBRARY_KEY}={LIBRARY} ++{NAME_KEY}={PACKED}"

FLASH = "flash_attention_2"  # verl's default
WITHOUT_EXCHANGE = ("eager", "flex_attention", "sdpa")
ON_NPUS = ("eager", FLASH, "sdpa")  # FLASH uses torch_npu's npu_fusion_attention: transformers/integrations
FLASH_BY_NAME = ("qwen2_vl", "qwen2_5_vl", "glm4v")  # verl's attention for these calls flash_attn


class AttentionError(ValueError):
    """Raised if the trainer's attention, or a setting related to it, cannot work."""


def check(config: Any, critic: bool) -> None:
    """Raise one error, before anything starts, if verl's FSDP engine does not support the attention settings.

    Args:
        config: verl's whole configuration.
        critic: whether the run has a critic.

    Raises:
        AttentionError: a setting is not supported; the message has its value and what to set instead.
    """
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    if actor.strategy not in ("fsdp", "fsdp2"):  # others have their own attention
        return
    attention = (model.get("override_config") or {}).get("attn_implementation", FLASH)
    ranks = max(_ulysses(actor, "fsdp_config"), _ulysses(config.actor_rollout_ref.get("ref") or {}, "fsdp_config"))
    device = config.trainer.device  # verl sets it to npu if it has found one
    if problem := without_kernel(attention, device) or without_exchange(attention, ranks, device):
        raise AttentionError(problem)
    if attention == PACKED and LIBRARY not in _libraries(model):
        raise AttentionError(f"{NAME_KEY}={PACKED} is unknown to transformers: also set {LIBRARY_KEY}={LIBRARY}")
    if attention == FLASH and not _has_flash():
        raise AttentionError(
            f"{NAME_KEY}={FLASH} (verl's default) needs the package flash-attn, which is not installed: "
            f"set {WHAT_TO_SET}"
        )
    _check_model(actor, model)
    if critic:
        _check_critic(config.critic)


def without_kernel(attention: str, device: str) -> str | None:
    """Return an error message if FSDP's trainer has no kernel for an attention on a device, otherwise None."""
    if device != "npu" or attention in ON_NPUS:
        return None
    return (
        f"{NAME_KEY}={attention} with trainer.device=npu: {attention} has no kernel for NPUs. Remove it and "
        f"{LIBRARY_KEY}={LIBRARY}: verl then uses {FLASH}, which transformers implements for NPUs"
    )


def without_exchange(attention: str, ranks: int, device: str) -> str | None:
    """Return an error message if an attention does not support Ulysses with this many ranks, otherwise None."""
    if ranks == 1 or attention not in WITHOUT_EXCHANGE:
        return None
    instead = f"++{NAME_KEY}={FLASH}" if device == "npu" else WHAT_TO_SET
    return (
        f"{NAME_KEY}={attention} with {ULYSSES}={ranks}: {attention} does not exchange heads, so each device would "
        f"silently attend only to its own part of the sequences. Set {instead}, or disable sequence parallelism"
    )


def _check_model(actor: Any, model: Any) -> None:
    fused = bool(model.get("use_fused_kernels")) and actor.strategy == "fsdp2"
    own = _model_config(model) if fused or not _flash_functions() else None
    if own is None:
        return
    if own.model_type in FLASH_BY_NAME and not _flash_functions():
        raise AttentionError(
            f"actor_rollout_ref.model.path={model.path}: verl's attention for {own.model_type} calls flash_attn's "
            "functions by name, and the package flash-attn is not installed: install it, or train another model"
        )
    if fused and not getattr(own, "tie_word_embeddings", False):
        raise AttentionError(
            "actor_rollout_ref.model.use_fused_kernels=True with strategy fsdp2 and a model whose embeddings "
            "are not tied: verl's fused kernel would read lm_head's weight while it is still sharded. Set "
            "use_fused_kernels=False"
        )


def _check_critic(critic: Any) -> None:
    """Raise if a critic lacks flash-attn: verl loads value heads with flash_attention_2, regardless of the settings."""
    if critic.strategy in ("fsdp", "fsdp2") and not _has_flash():
        raise AttentionError(
            f"critic.strategy={critic.strategy}: verl always loads a critic with {FLASH}, and the package "
            "flash-attn is not installed: install it, or use an estimator without a critic "
            "(adv_estimator=grpo)"
        )


def _ulysses(role: Any, engine: str) -> int:
    """Return the number of Ulysses ranks that share a sequence; of its two settings, the outer one has priority."""
    return max(role.get(ULYSSES) or 1, (role.get(engine) or {}).get(ULYSSES) or 1)


def _libraries(model: Any) -> list[str]:
    libraries = model.get("external_lib") or []
    return [libraries] if isinstance(libraries, str) else list(libraries)


def _has_flash() -> bool:
    """Return whether transformers finds flash_attention_2: its package, the NPU's functions, or the hub's kernels."""
    return _flash_functions() or find_spec("kernels") is not None


def _flash_functions() -> bool:
    return any(find_spec(package) is not None for package in ("flash_attn", "torch_npu"))


def _model_config(model: Any) -> Any:
    """Load the model's config from a folder or the hub; None if there is none, which verl will report."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(os.path.expanduser(model.path), trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError):
        return None
