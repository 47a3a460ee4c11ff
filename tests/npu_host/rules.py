"""What Atlas A2 and A3 ask of an NPU operator's arguments and torch_npu's Meta kernels do not check: one table.

From the operators' documentation in torch_npu's wheel (`torch_npu/_op_plugin_docs.py` of 2.13.0) unless a comment
says otherwise. Texts that start with "only" are the limits of the reference kernels, not of the hardware.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

from npu_host import conditions as c
from npu_host.conditions import BF16, F16, F32, I8, I32, I64, absent, equals, has_dtype, one_a_row, whole_nz
from npu_host.formats import describe


class RuleBroken(RuntimeError):
    """A call that torch_npu takes and the hardware would not."""


@dataclass(frozen=True)
class Rule:
    """One condition on a call.

    Attributes:
        id: operator and condition, in short.
        text: the condition in one line.
        broken: the value that breaks it, of the operator's arguments by name; None where they keep it.
    """

    id: str
    text: str
    broken: Callable[[SimpleNamespace], object]


def check(operator: str, arguments: SimpleNamespace) -> list[str]:
    """The ids of the rules that a call keeps.

    Raises:
        RuleBroken: with the first rule that it breaks and the value that does.
    """
    rules = RULES.get(operator, ())
    for rule in rules:
        value = rule.broken(arguments)
        if value is not None:
            raise RuleBroken(f"{operator}: rule {rule.id}: {rule.text}; got {describe(value)}")
    return [rule.id for rule in rules]


CAST = (
    Rule("format_cast.target", "only ND (2) and FRACTAL_NZ (29)", c.cast_target),
    # FormatCastKernelNpu.cpp: customize_dtype is not supported before CANN 9.1.
    Rule(
        "format_cast.customize-dtype", "no customize_dtype: it needs CANN 9.1", absent("customize_dtype", "input_dtype")
    ),
    # Off is torch_npu's default: it then warns once and returns an ND tensor (TensorFactories.cpp).
    Rule("format_cast.allowed", "a cast to NZ needs torch.npu.config.allow_internal_format = True", c.cast_allowed),
    Rule("format_cast.matrix", "NZ needs two dimensions or more of int8, float16 or bfloat16", c.cast_matrix),
    # FormatCastKernelNpu.cpp casts the storage's base tensor, or falls back to ND where the view's shape differs.
    Rule("format_cast.whole", "the input is a whole tensor: contiguous, all of its storage", c.cast_whole),
)


def _fused(name: str, cumulative: Callable, scales: tuple, unsupported: tuple[str, ...]) -> tuple[Rule, ...]:
    """npu_grouped_matmul_swiglu_quant and its second version."""
    shapes = "x (M, K), weight (E, K, N), weight_scale (E, N), group_list (E), N even"
    return (
        Rule(f"{name}.input", "x is int8", has_dtype("x", I8)),
        Rule(f"{name}.weight", "weights are int8", has_dtype("weight", I8)),
        Rule(f"{name}.weight-nz", "weights are FRACTAL_NZ: torch_npu.npu_format_cast(weight, 29)", c.weight_is_nz),
        Rule(f"{name}.nz-whole", "a FRACTAL_NZ weight is used whole, not as a view", whole_nz("weight")),
        Rule(f"{name}.shapes", shapes, c.fused_shapes),
        Rule(f"{name}.reduction", "x and weight share K, below 65536", c.reduction("x", "weight", 65536)),
        Rule(f"{name}.columns", "N <= 10240", c.fused_columns),
        Rule(f"{name}.weight-scale", f"weight_scale is one of {describe(scales)}", has_dtype("weight_scale", *scales)),
        Rule(f"{name}.x-scale", "x_scale is float32 (M,)", one_a_row("x_scale", "x")),
        Rule(f"{name}.group-list", "group_list is int64", has_dtype("group_list", I64)),
        Rule(
            f"{name}.groups",
            "group sizes are >= 0 and sum up to at most M",
            c.group_sizes("group_list", "x", cumulative),
        ),
        Rule(f"{name}.absent", f"int8 weights go without {', '.join(unsupported)}", absent(*unsupported)),
    )


RULES: dict[str, tuple[Rule, ...]] = {
    "npu::npu_dynamic_quant": (
        Rule("dynamic_quant.input", "input is float16 or bfloat16", has_dtype("input", F16, BF16)),
        Rule("dynamic_quant.dim", "input has more than one dimension", c.has_rows),
        Rule("dynamic_quant.int8", "only dst_type int8", c.to_int8),
        Rule("dynamic_quant.per-token", "only quant_mode pertoken", equals("quant_mode", "pertoken")),
        Rule("dynamic_quant.absent", "only without group_index", absent("group_index")),
        Rule("dynamic_quant.smooth", "smooth_scales has the input's dtype and is (K,)", c.smooth_scales),
    ),
    "npu::npu_quantize": (
        Rule("quantize.input", "input is float32, float16 or bfloat16", has_dtype("input", F32, F16, BF16)),
        Rule(
            "quantize.scales", "scales: float32 or bfloat16 with div_mode, else of the input's dtype", c.quantize_scales
        ),
        Rule("quantize.dtype", "dtype is qint8, or with div_mode quint8 or qint32", c.quantize_dtype),
        Rule("quantize.axis", "without div_mode axis is -2 or the last one", c.quantize_axis),
        Rule(
            "quantize.zero-points",
            "zero_points: int8, uint8, int32 or bfloat16 with div_mode, else of the scales' dtype",
            c.quantize_zero_points,
        ),
    ),
    "npu::npu_quant_matmul": (
        Rule("quant_matmul.x1", "only an int8 x1", has_dtype("x1", I8)),
        Rule("quant_matmul.x2", "only an int8 x2", has_dtype("x2", I8)),
        Rule("quant_matmul.last-dim", "last dims of x1 and x2 <= 65535", c.quant_matmul_last_dims),
        Rule("quant_matmul.nz-whole", "a FRACTAL_NZ x2 is used whole, not as a view", whole_nz("x2")),
        Rule("quant_matmul.per-token", "pertoken_scale is float32 (M,)", one_a_row("pertoken_scale", "x1")),
        Rule(
            "quant_matmul.combination",
            "output, per-token scale, scale and bias are one of the documented combinations",
            c.quant_matmul_combination,
        ),
        Rule("quant_matmul.offset", "offset is for an int8 output", c.quant_matmul_offset),
        Rule(
            "quant_matmul.absent",
            "only without group_sizes, y_scale and the x1, x2, scale dtype overrides",
            absent("group_sizes", "y_scale", "x1_dtype", "x2_dtype", "pertoken_scale_dtype", "scale_dtype"),
        ),
    ),
    "npu::npu_grouped_matmul": (
        Rule("grouped_matmul.split", "only one x, split_item 2 or 3 and group_type 0", c.grouped_split),
        Rule(
            "grouped_matmul.dtypes",
            "int8 to bfloat16 with bfloat16 scales, to float16 with float32 scales, to int32 without; floats to "
            "themselves, without scales",
            c.grouped_dtypes,
        ),
        Rule("grouped_matmul.bias", "bias: int32 for int8, float16 for float16, else float32", c.grouped_bias),
        Rule("grouped_matmul.reduction", "x and weight share K; last dims < 65536", c.reduction("x", "weight", 65536)),
        Rule("grouped_matmul.nz-whole", "a FRACTAL_NZ weight is used whole, not as a view", whole_nz("weight")),
        Rule("grouped_matmul.per-token", "per_token_scale is float32 (M,)", one_a_row("per_token_scale", "x")),
        Rule("grouped_matmul.group-list", "group_list is an int64 vector", c.grouped_list),
        Rule(
            "grouped_matmul.groups",
            "a group an expert: at most 1024 with one weight tensor, 128 with several",
            c.grouped_count,
        ),
        Rule(
            "grouped_matmul.count-list",
            "a list of counts (group_list_type 1) has more than one entry",
            c.grouped_counts_of_several,
        ),
        # The documentation asks for a sum of exactly M; vllm-ascend passes less under expert parallelism.
        Rule(
            "grouped_matmul.group-values",
            "group sizes are >= 0 and sum up to at most M",
            c.group_sizes("group_list", "x", lambda a: a.group_list_type == 0),
        ),
        Rule("grouped_matmul.activation", "only without an activation", equals("act_type", 0, None)),
        Rule(
            "grouped_matmul.absent",
            "only without offset and weight-only quantization",
            absent("offset", "antiquant_scale", "antiquant_offset"),
        ),
    ),
    "npu::npu_grouped_matmul_swiglu_quant": _fused(
        "gmm_swiglu_quant", lambda a: True, (F32, F16, BF16), ("bias", "offset")
    ),
    "npu::npu_grouped_matmul_swiglu_quant_v2": _fused(
        "gmm_swiglu_quant_v2",
        lambda a: a.group_list_type == 0,
        (F32,),
        ("bias", "smooth_scale", "weight_assist_matrix"),
    ),
    "npu::npu_dequant_swiglu_quant": (
        Rule("dequant_swiglu_quant.input", "x is int32 or bfloat16", has_dtype("x", I32, BF16)),
        Rule("dequant_swiglu_quant.dynamic", "only quant_mode 1 (dynamic)", equals("quant_mode", 1)),
        Rule("dequant_swiglu_quant.plain", "only swiglu_mode 0 (no clamp, alpha, bias)", equals("swiglu_mode", 0)),
        Rule(
            "dequant_swiglu_quant.scales",
            "an int32 x has weight_scale and activation_scale, a bfloat16 x neither",
            c.dequant_scales,
        ),
        Rule("dequant_swiglu_quant.weight-scale", "weight_scale is float32", has_dtype("weight_scale", F32)),
        Rule(
            "dequant_swiglu_quant.activation-scale",
            "activation_scale is float32 (M,)",
            one_a_row("activation_scale", "x"),
        ),
        Rule("dequant_swiglu_quant.group-index", "group_index is int64", has_dtype("group_index", I64)),
        Rule("dequant_swiglu_quant.shapes", "x (M, 2H), weight_scale (groups, 2H)", c.dequant_shapes),
        Rule("dequant_swiglu_quant.width", "with group_index H <= 10496 and a multiple of 64", c.dequant_width),
        Rule(
            "dequant_swiglu_quant.groups",
            "group sizes are >= 0 and sum up to at most M",
            c.group_sizes("group_index", "x", lambda a: False),
        ),
        Rule(
            "dequant_swiglu_quant.absent",
            "only without bias, quant_scale and quant_offset",
            absent("bias", "quant_scale", "quant_offset"),
        ),
    ),
    "npu::npu_swiglu": (
        Rule("swiglu.input", "input is float32, float16 or bfloat16", has_dtype("input", F32, F16, BF16)),
        Rule("swiglu.even", "the split dimension is even", c.swiglu_even),
    ),
    "npu::npu_trans_quant_param": (
        Rule("trans_quant_param.scale", "scale is contiguous float32", c.packed_scale),
        Rule("trans_quant_param.absent", "only without offset", absent("offset")),
        Rule("trans_quant_param.round-mode", "only round_mode 0 (truncation)", equals("round_mode", 0, None)),
    ),
    "npu::npu_format_cast": CAST,
    "npu::npu_format_cast_.acl_format": CAST,
    "npu::npu_moe_init_routing_v2": (
        Rule("init_routing.input", "x is int8, float16, bfloat16 or float32", has_dtype("x", I8, F32, F16, BF16)),
        Rule("init_routing.experts", "expert_idx is int32", has_dtype("expert_idx", I32)),
        Rule("init_routing.range", "expert_num is 1 to 10240, active_expert_range lies within it", c.routing_range),
        Rule("init_routing.ids", "expert ids are below expert_num", c.routing_ids),
        Rule("init_routing.modes", "only dropless, token counts of each expert, gather indices", c.routing_modes),
        Rule("init_routing.quant", "quant_mode -1 (none) or 1 (dynamic, not of int8), no offset", c.routing_quant),
        Rule("init_routing.scale", "scale is float32; only without quantization", c.routing_scale),
    ),
    "npu::npu_moe_gating_top_k": (
        Rule("gating_top_k.input", "x is float16, bfloat16 or float32", has_dtype("x", F32, F16, BF16)),
        Rule("gating_top_k.bias", "bias has the dtype of x and is (E,)", c.gating_bias),
        Rule("gating_top_k.experts", "at most 2048 experts", c.gating_experts),
        Rule("gating_top_k.k", "1 <= k <= experts / group_count * k_group", c.gating_k),
        Rule("gating_top_k.renorm", "renorm is 0", equals("renorm", 0)),
        Rule("gating_top_k.one-group", "only one group, no hash table", c.gating_groups),
    ),
    "npu::npu_moe_token_permute": (
        Rule("token_permute.input", "tokens are bfloat16", has_dtype("tokens", BF16)),
        Rule("token_permute.indices", "indices are int64 or int32 (M, K), K <= 512", c.permute_indices),
        Rule("token_permute.padding", "padded_mode is False", equals("padded_mode", False)),
    ),
    "npu::npu_moe_token_unpermute": (
        Rule("token_unpermute.input", "permuted_tokens are bfloat16", has_dtype("permuted_tokens", BF16)),
        Rule("token_unpermute.indices", "sorted_indices are int32 rows of permuted_tokens", c.unpermute_indices),
        Rule("token_unpermute.probs", "probs are bfloat16", has_dtype("probs", BF16)),
        Rule("token_unpermute.padding", "padded_mode is False", equals("padded_mode", False)),
    ),
}
