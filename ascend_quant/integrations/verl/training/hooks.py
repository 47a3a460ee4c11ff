"""Monkeypatches of verl's training engine: functions that are replaced at run time, why, and how to disable them.

They are part of the list in verl/hooks.py.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ascend_quant.integrations.wrapping import Hook, ManualPatch

OWN_ENTRY = "verl's own main_ppo"
_HERE = "ascend_quant.integrations.verl.training"


def take_log_probs_in_chunks() -> None:
    """Replace verl's `cross_entropy_loss` by ours, and set verl's flag for it, if no other kernel is available."""
    import verl.utils.torch_functional as module

    flags = ("FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE", "NPU_CROSS_ENTROPY_LOSS_AVAILABLE")
    if any(getattr(module, flag, True) for flag in flags):
        return
    take_log_probs_as_the_engine()


def take_log_probs_as_the_engine(words: int | None = None) -> None:
    """Replace verl's `cross_entropy_loss` by ours in any case, since other kernels' sums differ in the last bit.

    Args:
        words: size of the vocabulary that the engine samples; see `log_probs_of`.
    """
    import verl.utils.torch_functional as module

    from ascend_quant.integrations.verl.training.log_probs import cross_entropy_loss

    own = cross_entropy_loss if words is None else functools.partial(cross_entropy_loss, words=words)
    module.cross_entropy_loss = own
    module.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE = True


def divided_in_float32(original: Callable) -> Callable:
    """Wrap `_scale_logits_by_temperature`: temperatures other than 1 give float32 logits, as in the engine."""

    def scale(logits: torch.Tensor, temperature: torch.Tensor, *, is_unit_temperature: bool) -> torch.Tensor:
        if is_unit_temperature:
            return original(logits, temperature, is_unit_temperature=True)
        return logits / temperature.float().clamp(min=1e-8)

    return scale


def without_attention(original: Callable) -> Callable:
    """Wrap `update_model_config`: `attn_implementation` is removed from the overrides that it writes."""

    def update(module_config: Any, override_config_kwargs: dict[str, Any]) -> None:
        original(module_config, {k: v for k, v in override_config_kwargs.items() if k != "attn_implementation"})

    return update


WITH_OUR_ATTENTION = (
    Hook(
        ("verl.workers.config.model:update_model_config",),
        without_attention,
        why="verl writes `override_config` into the model's config and saves it: with the attention's name in "
        "config.json, only processes that know this name could load the checkpoint. The model gets the name by "
        "another way (`AutoConfig.from_pretrained(attn_implementation=..)`, which transformers does not save)",
        versions="verl 0.9.1",
        off="another attn_implementation",
    ),
)

WITH_EXACT_TEMPERATURE = (
    Hook(
        ("verl.workers.engine.fsdp.transformer_impl:_scale_logits_by_temperature",),
        divided_in_float32,
        why="verl divides BF16 logits in BF16, vLLM divides float32 logits in float32: with another temperature than 1 "
        "every log-probability differs by this rounding (k3 1.2e-4 at 0.8 with all else equal)",
        versions="verl 0.9.1",
        off=f"{OWN_ENTRY}, or a temperature of 1",
        optional=True,
        loaded=True,
    ),
)

HOOKS = (
    *WITH_OUR_ATTENTION,
    *WITH_EXACT_TEMPERATURE,
)

MANUAL_PATCHES = (
    ManualPatch(
        "cross_entropy_loss and its flag in verl.utils.torch_functional",
        f"{_HERE}.hooks:take_log_probs_in_chunks",
        why="without the cross entropy of flash-attn or of NPUs, verl computes log-probabilities in a loop over rows",
        versions="verl 0.9.1",
        off="verl's variable VERL_DISABLE_FLASH_ATTN_CE",
    ),
    ManualPatch(
        "cross_entropy_loss in verl.utils.torch_functional, whichever kernel it uses",
        f"{_HERE}.hooks:take_log_probs_as_the_engine",
        why="an exact actor computes log-probabilities as vLLM's sampler does, and verl has no setting for a custom "
        "function",
        versions="verl 0.9.1",
        off="another `qat` than int8_exact",
    ),
    ManualPatch(
        "forward_step, optimizer_step and get_per_tensor_param of the training engine",
        f"{_HERE}.exact.worker:Counter.__init__",
        why="an exact actor's log-probabilities are compared with the rollout's in an update's own forward passes, "
        "while both have the same weights; in bypass mode verl compares nothing",
        versions="verl 0.9.1",
        off="another `qat` than int8_exact",
    ),
    ManualPatch(
        "initialize of the training engine",
        f"{_HERE}.qat_worker:fake_quantized",
        why="layers are fake-quantized once the model is built; verl's own hook supports only NVFP4",
        versions="verl 0.9.1",
        off="no setting of fake quantization",
    ),
)
