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
        text: the condition in one line.
        broken: the value that breaks it, of the operator's arguments by name; None where they keep it.
    """

    text: str
    broken: Callable[[SimpleNamespace], object]


def check(operator: str, arguments: SimpleNamespace) -> None:
    """Looks whether a call keeps its operator's rules.

    Raises:
        RuleBroken: with the first rule that it breaks and the value that does.
    """
    for rule in RULES.get(operator, ()):
        value = rule.broken(arguments)
        if value is not None:
            raise RuleBroken(f"{operator}: {rule.text}; got {describe(value)}")


CAST = (
    Rule("only ND (2) and FRACTAL_NZ (29)", c.cast_target),
    # FormatCastKernelNpu.cpp: customize_dtype is not supported before CANN 9.1.
    Rule("no customize_dtype: it needs CANN 9.1", absent("customize_dtype", "input_dtype")),
    # Off is torch_npu's default: it then warns once and returns an ND tensor (TensorFactories.cpp).
    Rule("a cast to NZ needs torch.npu.config.allow_internal_format = True", c.cast_allowed),
    Rule("NZ needs two dimensions or more of int8, float16 or bfloat16", c.cast_matrix),
    # FormatCastKernelNpu.cpp casts the storage's base tensor, or falls back to ND where the view's shape differs.
    Rule("the input is a whole tensor: contiguous, all of its storage", c.cast_whole),
)


def _fused(cumulative: Callable, scales: tuple, unsupported: tuple[str, ...]) -> tuple[Rule, ...]:
    """npu_grouped_matmul_swiglu_quant and its second version."""
    shapes = "x (M, K), weight (E, K, N), weight_scale (E, N), group_list (E), N even"
    return (
        Rule("x is int8", has_dtype("x", I8)),
        Rule("weights are int8", has_dtype("weight", I8)),
        Rule("weights are FRACTAL_NZ: torch_npu.npu_format_cast(weight, 29)", c.weight_is_nz),
        Rule("a FRACTAL_NZ weight is used whole, not as a view", whole_nz("weight")),
        Rule(shapes, c.fused_shapes),
        Rule("x and weight share K, below 65536", c.reduction("x", "weight", 65536)),
        Rule("N <= 10240", c.fused_columns),
        Rule(f"weight_scale is one of {describe(scales)}", has_dtype("weight_scale", *scales)),
        Rule("x_scale is float32 (M,)", one_a_row("x_scale", "x")),
        Rule("group_list is int64", has_dtype("group_list", I64)),
        Rule("group sizes are >= 0 and sum up to at most M", c.group_sizes("group_list", "x", cumulative)),
        Rule(f"int8 weights go without {', '.join(unsupported)}", absent(*unsupported)),
    )


RULES: dict[str, tuple[Rule, ...]] = {
    "npu::npu_dynamic_quant": (
        Rule("input is float16 or bfloat16", has_dtype("input", F16, BF16)),
        Rule("input has more than one dimension", c.has_rows),
        Rule("only dst_type int8", c.to_int8),
        Rule("only quant_mode pertoken", equals("quant_mode", "pertoken")),
        Rule("only without group_index", absent("group_index")),
        Rule("smooth_scales has the input's dtype and is (K,)", c.smooth_scales),
    ),
    "npu::npu_quantize": (
        Rule("input is float32, float16 or bfloat16", has_dtype("input", F32, F16, BF16)),
        Rule("scales: float32 or bfloat16 with div_mode, else of the input's dtype", c.quantize_scales),
        Rule("dtype is qint8, or with div_mode quint8 or qint32", c.quantize_dtype),
        Rule("without div_mode axis is -2 or the last one", c.quantize_axis),
        Rule(
            "zero_points: int8, uint8, int32 or bfloat16 with div_mode, else of the scales' dtype",
            c.quantize_zero_points,
        ),
    ),
    "npu::npu_quant_matmul": (
        Rule("only an int8 x1", has_dtype("x1", I8)),
        Rule("only an int8 x2", has_dtype("x2", I8)),
        Rule("last dims of x1 and x2 <= 65535", c.quant_matmul_last_dims),
        Rule("a FRACTAL_NZ x2 is used whole, not as a view", whole_nz("x2")),
        Rule("pertoken_scale is float32 (M,)", one_a_row("pertoken_scale", "x1")),
        Rule(
            "output, per-token scale, scale and bias are one of the documented combinations", c.quant_matmul_combination
        ),
        Rule("offset is for an int8 output", c.quant_matmul_offset),
        Rule(
            "only without group_sizes, y_scale and the x1, x2, scale dtype overrides",
            absent("group_sizes", "y_scale", "x1_dtype", "x2_dtype", "pertoken_scale_dtype", "scale_dtype"),
        ),
    ),
    "npu::npu_grouped_matmul": (
        Rule("only one x, split_item 2 or 3 and group_type 0", c.grouped_split),
        Rule(
            "int8 to bfloat16 with bfloat16 scales, to float16 with float32 scales, to int32 without; floats to "
            "themselves, without scales",
            c.grouped_dtypes,
        ),
        Rule("bias: int32 for int8, float16 for float16, else float32", c.grouped_bias),
        Rule("x and weight share K; last dims < 65536", c.reduction("x", "weight", 65536)),
        Rule("a FRACTAL_NZ weight is used whole, not as a view", whole_nz("weight")),
        Rule("per_token_scale is float32 (M,)", one_a_row("per_token_scale", "x")),
        Rule("group_list is an int64 vector", c.grouped_list),
        Rule("a group an expert: at most 1024 with one weight tensor, 128 with several", c.grouped_count),
        Rule("a list of counts (group_list_type 1) has more than one entry", c.grouped_counts_of_several),
        # The documentation asks for a sum of exactly M; vllm-ascend passes less under expert parallelism.
        Rule(
            "group sizes are >= 0 and sum up to at most M",
            c.group_sizes("group_list", "x", lambda a: a.group_list_type == 0),
        ),
        Rule("only without an activation", equals("act_type", 0, None)),
        Rule(
            "only without offset and weight-only quantization", absent("offset", "antiquant_scale", "antiquant_offset")
        ),
    ),
    "npu::npu_grouped_matmul_swiglu_quant": _fused(lambda a: True, (F32, F16, BF16), ("bias", "offset")),
    "npu::npu_grouped_matmul_swiglu_quant_v2": _fused(
        lambda a: a.group_list_type == 0, (F32,), ("bias", "smooth_scale", "weight_assist_matrix")
    ),
    "npu::npu_dequant_swiglu_quant": (
        Rule("x is int32 or bfloat16", has_dtype("x", I32, BF16)),
        Rule("only quant_mode 1 (dynamic)", equals("quant_mode", 1)),
        Rule("only swiglu_mode 0 (no clamp, alpha, bias)", equals("swiglu_mode", 0)),
        Rule("an int32 x has weight_scale and activation_scale, a bfloat16 x neither", c.dequant_scales),
        Rule("weight_scale is float32", has_dtype("weight_scale", F32)),
        Rule("activation_scale is float32 (M,)", one_a_row("activation_scale", "x")),
        Rule("group_index is int64", has_dtype("group_index", I64)),
        Rule("x (M, 2H), weight_scale (groups, 2H)", c.dequant_shapes),
        Rule("with group_index H <= 10496 and a multiple of 64", c.dequant_width),
        Rule("group sizes are >= 0 and sum up to at most M", c.group_sizes("group_index", "x", lambda a: False)),
        Rule("only without bias, quant_scale and quant_offset", absent("bias", "quant_scale", "quant_offset")),
    ),
    "npu::npu_swiglu": (
        Rule("input is float32, float16 or bfloat16", has_dtype("input", F32, F16, BF16)),
        Rule("the split dimension is even", c.swiglu_even),
    ),
    "npu::npu_format_cast": CAST,
    "npu::npu_format_cast_.acl_format": CAST,
    "npu::npu_moe_init_routing_v2": (
        Rule("x is int8, float16, bfloat16 or float32", has_dtype("x", I8, F32, F16, BF16)),
        Rule("expert_idx is int32", has_dtype("expert_idx", I32)),
        Rule("expert_num is 1 to 10240, active_expert_range lies within it", c.routing_range),
        Rule("expert ids are below expert_num", c.routing_ids),
        Rule("only dropless, token counts of each expert, gather indices", c.routing_modes),
        Rule("quant_mode -1 (none) or 1 (dynamic, not of int8), no offset", c.routing_quant),
        Rule("scale is float32; only without quantization", c.routing_scale),
    ),
    "npu::npu_moe_gating_top_k": (
        Rule("x is float16, bfloat16 or float32", has_dtype("x", F32, F16, BF16)),
        Rule("bias has the dtype of x and is (E,)", c.gating_bias),
        Rule("at most 2048 experts", c.gating_experts),
        Rule("1 <= k <= experts / group_count * k_group", c.gating_k),
        Rule("renorm is 0", equals("renorm", 0)),
        Rule("only one group, no hash table", c.gating_groups),
    ),
    "npu::npu_moe_token_permute": (
        Rule("tokens are bfloat16", has_dtype("tokens", BF16)),
        Rule("indices are int64 or int32 (M, K), K <= 512", c.permute_indices),
        Rule("padded_mode is False", equals("padded_mode", False)),
    ),
    "npu::npu_moe_token_unpermute": (
        Rule("permuted_tokens are bfloat16", has_dtype("permuted_tokens", BF16)),
        Rule("sorted_indices are int32 rows of permuted_tokens", c.unpermute_indices),
        Rule("probs are bfloat16", has_dtype("probs", BF16)),
        Rule("padded_mode is False", equals("padded_mode", False)),
    ),
}
