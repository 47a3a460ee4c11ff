"""Settings of vllm-ascend that keep copies of weights which a refit would not update: a table of refusals.

Each setting is looked up in the config object of vllm-ascend or vLLM, or in environment variables, if the version has
it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vllm.config import get_current_vllm_config
from vllm_ascend import envs
from vllm_ascend.ascend_config import get_ascend_config

from ascend_quant.refit import RefitError


@dataclass(frozen=True)
class Refusal:
    """Row of the table: one setting that is refused.

    Attributes:
        setting: the setting as a user writes it.
        seen: a function of vllm-ascend's config object that returns whether the setting is on.
        why: why it does not work.
        instead: what the user should do.
        experts_only: whether it is allowed for models without experts.
    """

    setting: str
    seen: Callable[[object], bool]
    why: str
    instead: str
    experts_only: bool = False


def held(root: object, path: str, default: object = None) -> object:
    """Return a nested attribute or dict item; the default if the version lacks it."""
    for name in path.split("."):
        root = root.get(name) if isinstance(root, dict) else getattr(root, name, None)
        if root is None:
            return default
    return root


def on(*paths: str) -> Callable[[object], bool]:
    """Return whether the config object has a true value at one of these paths."""
    return lambda settings: any(held(settings, path) for path in paths)


def in_vllm(*paths: str) -> Callable[[object], bool]:
    """Return whether vLLM's configuration of the engine being built has a true value at one of these paths."""
    return lambda settings: on(*paths)(get_current_vllm_config())


def variable(name: str) -> Callable[[object], bool]:
    """Return whether the version knows the environment variable and it is on."""
    return lambda settings: bool(getattr(envs, name, False))


def matmul_allreduce(settings: object) -> bool:
    """Return whether matmul_allreduce is on: in 0.23 the config overrides the variable; 0.10 has only the variable."""
    otherwise = variable("VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE")(settings)
    return bool(held(settings, "enable_matmul_allreduce", otherwise))


def moved_experts(settings: object) -> bool:
    """Return whether vLLM's own EPLB switch moves experts: since 0.27, and only with the v2 model runner."""
    return in_vllm("use_v2_model_runner")(settings) and in_vllm("parallel_config.enable_eplb")(settings)


def sleeps_in_nz(settings: object) -> bool:
    """Return whether sleep or weight transfer is on with weights in FRACTAL_NZ, which 0.23 sets by a variable."""
    return bool(held(settings, "weight_nz_mode")) and in_vllm(
        "model_config.enable_sleep_mode", "weight_transfer_config"
    )(settings)


def shards_further(settings: object) -> bool:
    """Return whether o_proj, embedding or head are sharded over prefill context ranks (0.30: by default)."""
    of = on("enable_pcp_o_proj_weight_sharding", "enable_pcp_embedding_lmhead_weight_sharding")
    ranks = held(get_current_vllm_config(), "parallel_config.prefill_context_parallel_size", 1)
    return of(settings) and ranks > 1


REFUSALS = (
    Refusal(
        "torchair_graph_config.enabled",
        on("torchair_graph_config.enabled"),
        "its compiled graphs may keep copies of weights",
        "leave it out; ACL graphs are the default",
    ),
    Refusal(
        "xlite_graph_config.enabled",
        on("xlite_graph_config.enabled"),
        "its graphs are compiled from transformed weights",
        "leave it out; ACL graphs are the default",
    ),
    Refusal(
        "enable_matmul_allreduce (VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE)",
        matmul_allreduce,
        "it multiplies with row-parallel weights directly, bypassing their quantization",
        "turn it off",
    ),
    Refusal(
        "layer_sharding",  # also enables FLASHCOMM2's sharding of o_proj
        on("layer_sharding"),
        "it moves weights between ranks, away from the addresses that a refit writes to",
        "leave it out",
    ),
    Refusal(
        "enable_dsa_cp",
        on("enable_dsa_cp", "vllm_config.additional_config.enable_dsa_cp"),  # since 0.27, before
        "it keeps halves of wq_b and copies of the output projections, which a refit would not update",
        "leave it out",
    ),
    Refusal(
        "enable_pcp_o_proj_weight_sharding and enable_pcp_embedding_lmhead_weight_sharding",
        shards_further,
        "they shard weights over the ranks that share a prompt, which has not been tested with refits",
        "set both to false",
    ),
    Refusal(
        "weight_nz_mode (VLLM_ASCEND_ENABLE_NZ)",
        sleeps_in_nz,
        "with it vllm-ascend refuses to wake up and to take weights from a trainer; for the layout of its weights "
        "ascend-quant has its own option, nz",
        'set additional_config={"weight_nz_mode": 0}, or before vllm-ascend 0.27 VLLM_ASCEND_ENABLE_NZ=0',
    ),
    Refusal(
        "cpu_offload_gb and offload_group_size",
        in_vllm(
            "cache_config.cpu_offload_gb",
            "offload_config.uva.cpu_offload_gb",
            "offload_config.prefetch.offload_group_size",
        ),
        "it moves weights to the host, away from the addresses that a refit writes to",
        "leave both out",
    ),
    Refusal(
        "load_format=rfork",
        lambda settings: str(held(get_current_vllm_config(), "load_config.load_format", "")) == "rfork",
        "it copies another engine's weights from memory, bypassing the quantization",
        "use auto",
    ),
    Refusal(
        "enable_fused_mc2=1 (VLLM_ASCEND_ENABLE_FUSED_MC2)",
        lambda settings: held(settings, "enable_fused_mc2") == 1,
        "it keeps scales in its own format, which a refit would not update",
        "set it to 0",
        experts_only=True,
    ),
    Refusal(
        "dynamic_eplb",
        on("eplb_config.dynamic_eplb", "dynamic_eplb"),
        "it keeps copies of the experts, which a refit would not update",
        "turn it off",
        experts_only=True,
    ),
    Refusal(
        "enable_eplb",
        moved_experts,
        "it keeps copies of the experts, which a refit would not update",
        "turn it off",
        experts_only=True,
    ),
    Refusal(
        "VLLM_ENABLE_FUSED_EXPERTS_ALLGATHER_EP",
        variable("VLLM_ENABLE_FUSED_EXPERTS_ALLGATHER_EP"),
        "it needs w2 in FRACTAL_NZ, but the other kernels of this version need it in ND",
        "set it to 0",
        experts_only=True,
    ),
)


def refuse(prefix: str, experts: bool) -> None:
    """Raise RefitError if a setting is on that this layer does not support.

    Args:
        prefix: name of the layer.
        experts: whether it is an MoE layer.
    """
    settings = get_ascend_config()
    for one in REFUSALS:
        if (experts or not one.experts_only) and one.seen(settings):
            raise RefitError(f"{prefix}: {one.setting} cannot be used: {one.why}; {one.instead}")
