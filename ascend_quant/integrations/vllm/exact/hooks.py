"""Monkeypatches of vLLM for exact engines: functions that are replaced at run time, why, and how to disable them.

They are part of the list in vllm/hooks.py.
"""

from ascend_quant.integrations.vllm.exact import attention as exact_attention
from ascend_quant.integrations.vllm.exact import log_probs as exact_log_probs
from ascend_quant.integrations.wrapping import Hook, ManualPatch

NOT_EXACT = "no engine with the option exact in the process"
WITH_FIRST_EXACT_MODEL = (
    Hook(
        (
            "vllm.v1.attention.backends.flash_attn:get_scheduler_metadata",
            "vllm.v1.attention.backends.flash_attn:flash_attn_varlen_func",
        ),
        exact_attention.one_part,
        why="the number of splits over a sequence's keys depends on the batch; vLLM's setting applies only to graphs, "
        "and VLLM_BATCH_INVARIANT replaces much that is already exact",
        versions="0.23 to 0.32",
        off=NOT_EXACT,
        optional=True,
        loaded=True,
    ),
    Hook(
        ("vllm.v1.worker.gpu.sample.logprob:compute_token_logprobs",),
        exact_log_probs.by_torch,
        why="the second model runner's kernel has its own exponentials and order of summation, which no trainer has",
        versions="0.24 to 0.32, for models that the second model runner serves",
        off=NOT_EXACT,
        optional=True,
        loaded=True,
        everywhere=True,
    ),
    Hook(
        ("vllm.v1.worker.gpu.sample.states:apply_temperature",),
        exact_log_probs.divided_by_torch,
        why="the same for its division by the temperature, which Triton approximates",
        versions="0.24 to 0.32, for models that the second model runner serves",
        off=NOT_EXACT,
        optional=True,
        loaded=True,
    ),
    Hook(
        ("vllm._custom_ops:cpu_attn_get_scheduler_metadata",),
        exact_attention.scheduling_each_query,
        why="a token's sum over its keys depends on how many queries of its request are computed with it",
        versions="those that have it: 0.28 to 0.32",
        off=NOT_EXACT,
        optional=True,
    ),
    Hook(
        ("vllm._custom_ops:cpu_attention_with_kv_cache",),
        exact_attention.attending_each_query,
        why="the same",
        versions="those that have it: 0.28 to 0.32",
        off=NOT_EXACT,
        optional=True,
    ),
)

MANUAL_PATCHES = (
    ManualPatch(
        "the functions that the forward of a norm, a rotary embedding and SiLU calls in an exact model",
        "ascend_quant.integrations.vllm.exact.install:install",
        why="a trainer has the same ops; custom classes (CustomOp.register_oot) would replace those of every engine in "
        "the process",
        versions="those whose CustomOp has _forward_method: 0.23 to 0.32",
        off="without the option exact",
    ),
)
