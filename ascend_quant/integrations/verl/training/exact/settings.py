"""Settings that `qat=int8_exact` needs, checked before anything starts: engine and actor then share one INT8 policy.

    +actor_rollout_ref.rollout.engine_kwargs.ascend_quant.qat=int8_exact
    +actor_rollout_ref.rollout.engine_kwargs.vllm.hf_overrides.quantization_config.exact=true

A setting that changes the computation of only one of them makes every token differ, so such settings are refused.
"""

from typing import Any

from ascend_quant.engine.options import EXACT_SCHEME, Options
from ascend_quant.integrations.verl import EXACT, EXACT_RANKS
from ascend_quant.integrations.verl.settings import QUANTIZATION, flag
from ascend_quant.refit import RefitError

OPTION = f"rollout.engine_kwargs.{QUANTIZATION}.qat={EXACT}"
PARTS, SYNC = "actor_rollout_ref", "sync"
MUST_BE: dict[str, tuple[Any, str]] = {  # below actor_rollout_ref; unset values have verl's defaults
    "actor.strategy": ("fsdp2", "exact training needs parameters in BF16 during the forward pass, as FSDP2 has them"),
    "model.use_fused_kernels": (False, "verl's fused kernel computes log-probabilities differently from the engine"),
    "rollout.calculate_log_probs": (
        True,
        "the actor's log-probabilities are compared with the rollout's in every step",
    ),
    "rollout.logprobs_mode": ("processed_logprobs", "the actor divides by the temperature too"),
    "rollout.pipeline_model_parallel_size": (1, "pipeline stages have not been compared with the trainer"),
    "rollout.expert_parallel_size": (1, "expert parallelism changes the order of summation"),
    "rollout.top_k": (-1, "processed log-probabilities would cover only a part of the vocabulary"),
    "rollout.top_p": (1, "processed log-probabilities would cover only a part of the vocabulary"),
    "rollout.repetition_penalty": (1.0, "the actor applies no penalty"),
}


def ranks_of(config: Any) -> int:
    """Return the engine's tensor-parallel size, which the actor reproduces.

    Raises:
        RefitError: a setting is invalid; the message has its value and what to set instead.
    """
    for name, (wanted, why) in MUST_BE.items():
        if (value := _value(config[PARTS], name, wanted)) != wanted:
            raise RefitError(f"{OPTION} with {name}={value}: {why}; set {PARTS}.{name}={wanted}")
    mode = (config.trainer.get("v1") or {}).get("trainer_mode", SYNC)
    if mode != SYNC:
        raise RefitError(
            f"{OPTION} with trainer.v1.trainer_mode={mode}: this mode trains on samples of older weights; set {SYNC}"
        )
    ranks = config[PARTS].rollout.get("tensor_model_parallel_size", 1)
    if ranks not in EXACT_RANKS:
        raise RefitError(
            f"{OPTION} with rollout.tensor_model_parallel_size={ranks}: an all-reduce over more than two "
            f"ranks has no fixed order of summation; set {' or '.join(map(str, EXACT_RANKS))}"
        )
    return ranks


def is_strict(rollout: Any) -> bool:
    """Return whether a single differing token ends the run.

    +actor_rollout_ref.rollout.engine_kwargs.ascend_quant.strict=true

    Raises:
        RefitError: the value is not True or False.
    """
    return flag(rollout, "strict", default=False)


def check_engine(options: Options) -> None:
    """Raise RefitError unless a replica with these options serves the policy that the actor computes."""
    where = "rollout.engine_kwargs.vllm.hf_overrides.quantization_config"
    if options.scheme != EXACT_SCHEME:
        raise RefitError(f"{OPTION}, but the rollout serves {options.scheme}: set {where}.scheme={EXACT_SCHEME}")
    if not options.exact:
        raise RefitError(f"{OPTION}, but the rollout's engines are not exact: set {where}.exact=true")


def _value(config: Any, name: str, default: Any) -> Any:
    part, _, leaf = name.partition(".")
    value = (config.get(part) or {}).get(leaf)
    return default if value is None else value
