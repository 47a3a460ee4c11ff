"""What differs between the versions of verl and vllm-ascend of the stacks, all of it here. The rest holds for all.

| stack          | verl                                        | its vLLM |
|----------------|---------------------------------------------|----------|
| ascend-cann8.5 | 0.8.0.dev, commit bcb638649a50 (April 2026) | 0.10.1   |
| all others     | 0.9.1                                       | 0.23     |

Both versions of verl read the same configuration tree, and both leave the same two things to the caller, which
`settings.py` says to both: that log-probabilities of the rollout are kept, and, in bypass mode, the actor's loss. Each
has settings that it reads nowhere: who sets one gets no error and no effect. They were found in its sources by
tests/engine/verl_reads.py; each is here with the settings that are read in its place, if any.

vllm-ascend's own casts to FRACTAL_NZ do not survive a sleep, and vLLM's workers refuse to wake up with them. Up to 0.23
a variable switches them off, which verl sets too; 0.27.1rc1 and 0.30.0rc2 do not read it and have a setting. Read in
their sources, not run on hardware.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from launch import stacks  # the module, as it imports this package's fields
from launch.recipes.hydra_syntax import ACTOR, MODEL, REFERENCE, ROLLOUT, VLLM

Unread = dict[str, tuple[str, ...]]  # settings of verl that it reads nowhere, and those that it reads in their place
BOTH: Unread = {
    f"{ACTOR}.use_torch_compile": (
        f"{ACTOR}.fsdp_config.use_torch_compile",
        f"{REFERENCE}.fsdp_config.use_torch_compile",
    ),
    f"{REFERENCE}.use_torch_compile": (f"{REFERENCE}.fsdp_config.use_torch_compile",),
    f"{ACTOR}.use_fused_kernels": (f"{MODEL}.use_fused_kernels",),
    "actor_rollout_ref.nccl_timeout": (),
    f"{ROLLOUT}.multi_stage_wake_up": (),
    f"{ROLLOUT}.multi_turn.num_repeat_rollouts": (f"{ROLLOUT}.n",),
    f"{ROLLOUT}.over_sample_rate": (),
    "data.return_raw_input_ids": (),
    "critic.forward_max_token_len_per_gpu": (),
    "critic.forward_micro_batch_size": (),
    "critic.forward_micro_batch_size_per_gpu": (),
    "critic.nccl_timeout": (),
    **{
        f"{part}.megatron.{name}": ()
        for part in (ACTOR, REFERENCE, "critic")
        for name in ("dist_checkpointing_prefix", "router_replay.record_file", "router_replay.replay_file")
    },
    **{f"{part}.tiled_mlp.num_shards": () for part in (MODEL, "critic.model")},
}
OF_RELEASE: Unread = {
    **BOTH,
    f"{ACTOR}.freeze_vision_tower": (),
    "reward.reward_model.rollout.multi_stage_wake_up": (),
}
OF_COMMIT: Unread = {
    **BOTH,
    f"{ACTOR}.entropy_checkpointing": (f"{ACTOR}.fsdp_config.entropy_checkpointing",),
    f"{REFERENCE}.entropy_checkpointing": (f"{REFERENCE}.fsdp_config.entropy_checkpointing",),
}
FIRST_WITH_SETTING = (0, 27)  # of vllm-ascend


@dataclass(frozen=True)
class Verl:
    """One version of verl, as far as a recipe is concerned.

    Attributes:
        name: for people.
        main: the module that starts a run. Ours logs every refit and proves what was sent; it needs verl's trainer v1.
        names_quantization: whether the engine's command line takes our quantization by its name. vLLM 0.10.1's knows
            its own names alone, and finds ours in `hf_overrides`, where a checkpoint's config would have it.
        worker: what vLLM is told to mix into its workers, where the entry is not ours and so does not choose it. It
            sends no digests, so that none are waited for.
        absent: parts of the newer version's tree that this one lacks, and what they are for.
        unread: settings of its tree that its sources read nowhere, and those that are read in their place.
    """

    name: str
    main: str
    names_quantization: bool
    worker: str | None = None
    absent: dict[str, str] = field(default_factory=dict)
    unread: Unread = field(default_factory=dict)

    def lacks(self, key: str) -> str | None:
        """The part that holds a setting, if this version has no such part."""
        return next((part for part in self.absent if key == part or key.startswith(f"{part}.")), None)


RELEASE = Verl("0.9.1", main="ascend_quant.integrations.verl.main_ppo", names_quantization=True, unread=OF_RELEASE)
COMMIT = Verl(
    "0.8.0.dev (commit bcb638649a50)",
    main="verl.trainer.main_ppo",
    names_quantization=False,
    worker="ascend_quant.integrations.verl.worker.UnprovedWorkerExtension",
    absent={"algorithm.filter_groups": "dynamic sampling"},
    unread=OF_COMMIT,
)


def verl_of(stack: str) -> Verl:
    """The version of verl that a stack pins."""
    return COMMIT if stack == "ascend-cann8.5" else RELEASE


def reads_variable(version: str) -> bool:
    """Whether this vllm-ascend reads VLLM_ASCEND_ENABLE_NZ.

    Args:
        version: such as 0.23.0.post1.
    """
    major, minor = re.match(r"(\d+)\.(\d+)", version).groups()
    return (int(major), int(minor)) < FIRST_WITH_SETTING


@cache
def version_of(stack: str) -> str | None:
    """The version of vllm-ascend that a stack pins; None without one."""
    return stacks.pins(stack).packages.get("vllm-ascend")


def nz_settings(stack: str) -> dict[str, Any]:
    """verl's settings that switch the casts off, by their dotted keys; none where the variable does."""
    version = version_of(stack)
    if version is None or reads_variable(version):
        return {}
    return {f"{VLLM}.additional_config.weight_nz_mode": 0}
