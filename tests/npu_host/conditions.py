"""Conditions on an operator's arguments: each returns the value that breaks it, or None where the call keeps it.

The arguments come as a namespace with the schema's names, `a`. rules.py gives the conditions their names and texts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch

from npu_host import dtypes, formats
from npu_host.formats import NZ

I8, I32, I64 = torch.int8, torch.int32, torch.int64
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
Condition = Callable[[SimpleNamespace], object]


def unless(holds: bool, value):
    """None if the condition holds, else the value."""
    return None if holds else value


def named(a, *names: str) -> list[str]:
    """Some of the arguments, as name=value."""
    return [f"{name}={formats.describe(getattr(a, name, None))}" for name in names]


def tensors(value) -> list[torch.Tensor]:
    """An argument that is a tensor, a list of tensors or None, as a list."""
    return [] if value is None else [value] if isinstance(value, torch.Tensor) else list(value)


# ---- for any operator
def has_dtype(name: str, *allowed: torch.dtype) -> Condition:
    """A tensor, or each of a list, has one of the dtypes; None is left to the Meta kernel."""
    return lambda a: next((tensor for tensor in tensors(getattr(a, name)) if tensor.dtype not in allowed), None)


def absent(*names: str) -> Condition:
    """None of these arguments is given."""

    def broken(a):
        given = (name for name in names if getattr(a, name, None) is not None)
        return next((named(a, name)[0] for name in given), None)

    return broken


def equals(name: str, *allowed) -> Condition:
    """A number, string or flag is one of the allowed; an argument that this version does not have is fine."""
    return lambda a: unless(getattr(a, name, allowed[0]) in allowed, f"{name}={getattr(a, name, None)}")


def whole_nz(name: str) -> Condition:
    """No NZ tensor is a view."""

    def broken(a):
        views = (t for t in tensors(getattr(a, name)) if formats.format_of(t) == NZ and not formats.is_whole(t))
        return next(views, None)

    return broken


def one_a_row(name: str, rows_of: str) -> Condition:
    """float32 with one element a row of `rows_of` (.., M, K); absent is fine."""

    def broken(a):
        pairs = zip(tensors(getattr(a, name)), tensors(getattr(a, rows_of)), strict=False)
        return next((s for s, x in pairs if s.dtype != F32 or s.shape != (x.shape[-2],)), None)

    return broken


def reduction(x: str, weight: str, limit: int) -> Condition:
    """x (.., K) and weight (.., K, N) share K; last dimensions are below the limit."""

    def broken(a):
        rows, weights = tensors(getattr(a, x)), tensors(getattr(a, weight))
        same = all(w.shape[-2] == rows[0].shape[-1] for w in weights)
        return unless(same and all(t.shape[-1] < limit for t in (*rows, *weights)), [*rows, *weights])

    return broken


def group_sizes(name: str, rows_of: str, cumulative: Callable[[SimpleNamespace], bool]) -> Condition:
    """Group sizes are not negative and sum up to at most the rows there are; absent is fine."""

    def broken(a):
        if getattr(a, name) is None:
            return None
        values, rows = getattr(a, name).tolist(), tensors(getattr(a, rows_of))[0].shape[0]
        sizes = [high - low for low, high in zip([0, *values], values, strict=False)] if cumulative(a) else values
        return unless(min(sizes) >= 0 and sum(sizes) <= rows, [*sizes, "for", rows, "rows"])

    return broken


# ---- npu_dynamic_quant, npu_quantize
def has_rows(a):
    return unless(a.input.dim() > 1, a.input)


def to_int8(a):
    return unless(dtypes.stored(a.dst_type, I8) == I8, dtypes.from_code(a.dst_type))


def smooth_scales(a):
    smooth = a.smooth_scales
    fits = smooth is None or (smooth.dtype == a.input.dtype and smooth.shape == a.input.shape[-1:])
    return unless(fits, smooth)


def quantize_scales(a):
    return unless(a.scales.dtype in ((F32, BF16) if a.div_mode else (a.input.dtype,)), a.scales)


def quantize_dtype(a):
    allowed = (I8, torch.uint8, I32) if a.div_mode else (I8,)
    return unless(dtypes.stored(a.dtype, I8) in allowed, dtypes.from_code(a.dtype))


def quantize_axis(a):
    return unless(a.div_mode or a.axis in (-2, -1, a.input.dim() - 1), a.axis)


def quantize_zero_points(a):
    allowed = (I8, torch.uint8, I32, BF16) if a.div_mode else (a.scales.dtype,)
    return unless(a.zero_points is None or a.zero_points.dtype in allowed, a.zero_points)


# ---- npu_quant_matmul
@dataclass(frozen=True)
class Combination:
    """A documented row: output dtype, with a per-token scale or not, dtypes of scale and bias (which may be absent)."""

    output: torch.dtype
    per_token: bool
    scale: tuple[torch.dtype, ...]
    bias: tuple[torch.dtype, ...]


QUANT_MATMUL = (
    Combination(F16, False, (F32,), (I32,)),
    Combination(I8, False, (F32,), (I32,)),
    Combination(BF16, False, (F32, BF16), (I32, BF16, F32)),
    Combination(BF16, True, (F32, BF16), (I32, BF16, F32)),
    Combination(F16, True, (F32,), (I32, F16, F32)),
    Combination(I32, False, (F32, BF16), (I32,)),
)


def quant_matmul_combination(a):
    output, per_token = dtypes.stored(a.output_dtype, I8), a.pertoken_scale is not None
    bias = None if a.bias is None else a.bias.dtype
    for row in QUANT_MATMUL:
        same = (row.output, row.per_token) == (output, per_token)
        if same and a.scale.dtype in row.scale and (bias is None or bias in row.bias):
            return None
    return [output, "per-token" if per_token else "no per-token", "scale", a.scale.dtype, "bias", bias]


def quant_matmul_offset(a):
    return unless(a.offset is None or dtypes.stored(a.output_dtype, I8) == I8, a.offset)


def quant_matmul_last_dims(a):
    return next((x for x in (a.x1, a.x2) if x.shape[-1] > 65535), None)


# ---- npu_grouped_matmul
def grouped_split(a):
    modelled = len(a.x) == 1 and a.split_item in (2, 3) and a.group_type == 0
    return unless(modelled, [len(a.x), *named(a, "split_item", "group_type")])


def grouped_dtypes(a):
    x, output = a.x[0].dtype, dtypes.stored(a.output_dtype, a.x[0].dtype)
    if any(w.dtype != x for w in a.weight):
        return [*a.x, *a.weight]
    if x != I8:
        return unless(x in (F16, BF16, F32) and output == x and not a.scale, [*a.x, "to", output])
    # int32 is not in the documented table, but what vllm-ascend asks for before npu_dequant_swiglu_quant.
    scales = {BF16: {BF16}, F16: {F32}, I32: set()}.get(output)
    return unless(scales is not None and {s.dtype for s in tensors(a.scale)} == scales, ["int8 to", output, a.scale])


def grouped_bias(a):
    allowed = {I8: I32, F16: F16, BF16: F32, F32: F32}[a.x[0].dtype]
    return next((b for b in tensors(a.bias) if b.dtype != allowed), None)


def grouped_list(a):
    fits = isinstance(a.group_list, torch.Tensor) and a.group_list.dtype == I64 and a.group_list.dim() == 1
    return unless(fits, named(a, "group_list"))


def grouped_count(a):
    stacked = len(a.weight) == 1 and a.weight[0].dim() == 3
    experts, limit = (a.weight[0].shape[0], 1024) if stacked else (len(a.weight), 128)
    return unless(a.group_list.numel() == experts <= limit, [a.group_list, "for", experts, "experts"])


def grouped_counts_of_several(a):
    return unless(a.group_list_type == 0 or a.group_list.numel() > 1, a.group_list)


# ---- npu_grouped_matmul_swiglu_quant and its second version
def weight_is_nz(a):
    return next((w for w in tensors(a.weight) if formats.format_of(w) != NZ), None)


def fused_shapes(a):
    weight, scale = tensors(a.weight)[0], tensors(a.weight_scale)[0]
    experts, _, columns = weight.shape if weight.dim() == 3 else (-1, -1, -1)
    fits = a.x.dim() == 2 and scale.shape == (experts, columns) and a.group_list.shape == (experts,)
    return unless(fits and columns % 2 == 0, [a.x, weight, scale, a.group_list])


def fused_columns(a):
    weight = tensors(a.weight)[0]
    return unless(weight.shape[-1] <= 10240, weight)


# ---- npu_dequant_swiglu_quant, npu_swiglu
def dequant_scales(a):
    needed = a.x.dtype == I32
    given = (a.weight_scale is not None, a.activation_scale is not None)
    return unless(given == (needed, needed), [a.x, *named(a, "weight_scale", "activation_scale")])


def dequant_shapes(a):
    groups = 1 if a.group_index is None else a.group_index.numel()
    weight = a.weight_scale is None or a.weight_scale.shape == (groups, a.x.shape[-1])
    return unless(a.x.dim() == 2 and a.x.shape[-1] % 2 == 0 and weight, [a.x, a.weight_scale, groups, "groups"])


def dequant_width(a):
    width = a.x.shape[-1] // 2
    return unless(a.group_index is None or (width <= 10496 and width % 64 == 0), width)


def swiglu_even(a):
    return unless(a.input.shape[a.dim] % 2 == 0, a.input)


# ---- npu_format_cast
def cast_target(a):
    return unless(a.acl_format in formats.NAMES, a.acl_format)


def cast_allowed(a):
    return unless(a.acl_format != NZ or formats.casting_is_allowed(), "torch.npu.config.allow_internal_format = False")


def cast_matrix(a):
    return unless(a.acl_format != NZ or (a.input.dim() >= 2 and a.input.dtype in (I8, F16, BF16)), a.input)


def cast_whole(a):
    return unless(formats.is_whole(a.input), [a.input, "strides", list(a.input.stride())])


# ---- mixture of experts: routing
def routing_range(a):
    low, high = a.active_expert_range or (0, a.expert_num)
    return unless(0 < a.expert_num <= 10240 and 0 <= low < high <= a.expert_num, [low, high, "of", a.expert_num])


def routing_ids(a):
    low, high = a.expert_idx.aminmax() if a.expert_idx.numel() else (0, 0)
    return unless(int(low) >= 0 and int(high) < a.expert_num, f"ids from {int(low)} to {int(high)}")


def routing_modes(a):
    modes = ("drop_pad_mode", "expert_tokens_num_type", "expert_tokens_num_flag", "row_idx_type")
    return unless([getattr(a, mode) for mode in modes] == [0, 1, True, 0], named(a, *modes))


def routing_quant(a):
    allowed = (-1,) if a.x.dtype == I8 else (-1, 1)
    return unless(a.quant_mode in allowed and a.offset is None, [a.x, *named(a, "quant_mode", "offset")])


def routing_scale(a):
    return unless(a.scale is None or (a.scale.dtype == F32 and a.quant_mode == -1), a.scale)


def gating_bias(a):
    return unless(a.bias is None or (a.bias.dtype == a.x.dtype and a.bias.shape == a.x.shape[-1:]), a.bias)


def gating_experts(a):
    return unless(a.x.shape[-1] <= 2048, a.x)


def gating_k(a):
    return unless(1 <= a.k <= a.x.shape[-1] // a.group_count * a.k_group, [a.k, "of", a.x])


def gating_groups(a):
    return unless((a.group_count, a.k_group) == (1, 1), named(a, "group_count", "k_group")) or absent("tid2eid")(a)


def permute_indices(a):
    few = a.indices.dim() == 1 or a.indices.shape[1] <= 512
    return unless(a.indices.dtype in (I32, I64) and few, a.indices)


def unpermute_indices(a):
    indices, rows = a.sorted_indices, a.permuted_tokens.shape[0]
    low, high = indices.aminmax() if indices.numel() else (0, 0)
    return unless(indices.dtype == I32 and int(low) >= 0 and int(high) < max(rows, 1), [indices, "for", rows, "rows"])
