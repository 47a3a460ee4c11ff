"""The W8A8 mixture of experts on an NPU, with torch_npu's grouped int8 operators.

Weights are multiplied as (E, K, N), the layout in which they are stored (refit/formats.py), in ND or FRACTAL_NZ. The
interface takes (E, N, K): pass `resident.transpose(1, 2)`, a view that is transposed back here.

Differences from the oracle: activations are quantized as in linear.py; the down projection's scale and output and the
routing weights are rounded to x's dtype. Traced code neither branches on the number of tokens nor synchronizes.

Shape suffixes: M tokens, K input channels, N output channels, E experts of this rank, G experts of the model,
T experts a token, R = M * T rows in the order of their experts, H intermediate size.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ascend_quant.kernels.npu.ops import FRACTAL_NZ, check_dtype, grouped_matmul_swiglu_quant, operator
from ascend_quant.kernels.npu.serve.linear import LONGEST, quantize_rows

MOST_EXPERTS = 1024  # maximum groups of a grouped product
WIDEST_DEQUANT, DEQUANT_STEP = 10496, 64  # H of npu_dequant_swiglu_quant with groups: maximum, and required multiple
WIDEST_FUSED = 10240  # maximum N = 2 * H of npu_grouped_matmul_swiglu_quant


class Routed(NamedTuple):
    """Tokens repeated for each of their experts, in the order of the experts.

    Attributes:
        x_RK: codes or values; rows beyond the last expert's are undefined.
        scale_R: float32, scales of the codes.
        place_R: int32, the row of x_RK for each entry of the flattened expert_MT; -1 for experts of other ranks.
        count_E, end_E: int64, number of rows of each expert, and the end of its rows.
    """

    x_RK: torch.Tensor
    scale_R: torch.Tensor
    place_R: torch.Tensor
    count_E: torch.Tensor
    end_E: torch.Tensor


def experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_codes_ENK: torch.Tensor,
    w13_scale_EN: torch.Tensor,
    w2_codes_EKN: torch.Tensor,
    w2_scale_EK: torch.Tensor,
    local_G: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the mixture of `oracle.experts`, in x's dtype; each token is quantized once for all its experts.

    The first product has int32 outputs, which a second operator dequantizes and activates; weights may have any format.

    Args:
        x_MK: bfloat16 or float16.
        expert_MT: the routed experts, below E, or below G with `local_G`.
        w13_codes_ENK, w2_codes_EKN: int8; the module's docstring describes the layout.
        w13_scale_EN: float32.
        w2_scale_EK: float32; rounded to bfloat16 for bfloat16 x, so passing bfloat16 saves the cast.
        local_G: maps each of the model's G experts to its index in E, or to -1 on other ranks.

    Raises:
        ValueError: the operators do not support the dtypes or sizes.
    """
    hidden = w2_codes_EKN.shape[2]
    if hidden > WIDEST_DEQUANT or hidden % DEQUANT_STEP:
        raise ValueError(
            f"experts of intermediate size {hidden}: npu_dequant_swiglu_quant needs a multiple of "
            f"{DEQUANT_STEP} of at most {WIDEST_DEQUANT}; keep w13 in FRACTAL_NZ and call fused_experts"
        )
    w13, w2 = (w13_codes_ENK, w13_scale_EN), (w2_codes_EKN, w2_scale_EK)
    return _experts(_swiglu_after_product, x_MK, weight_MT, expert_MT, w13, w2, local_G)


def fused_experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_codes_ENK: torch.Tensor,
    w13_scale_EN: torch.Tensor,
    w2_codes_EKN: torch.Tensor,
    w2_scale_EK: torch.Tensor,
    local_G: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `experts` with one operator up to the second quantization, which needs w13 in FRACTAL_NZ.

    Raises:
        ValueError: as in `experts`; or w13 has another format, which the operator would misread (detected for real
            tensors only, not while a graph is traced).
    """
    columns = w13_codes_ENK.shape[1]
    if columns > WIDEST_FUSED:
        raise ValueError(
            f"experts of 2 * intermediate size = {columns}: the fused operator supports at most "
            f"{WIDEST_FUSED}; call experts"
        )
    if not (torch.compiler.is_compiling() or isinstance(w13_codes_ENK, FakeTensor)):
        _check_nz(w13_codes_ENK)
    w13, w2 = (w13_codes_ENK, w13_scale_EN), (w2_codes_EKN, w2_scale_EK)
    return _experts(_swiglu_in_product, x_MK, weight_MT, expert_MT, w13, w2, local_G)


def plain_experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_ENK: torch.Tensor,
    w2_EKN: torch.Tensor,
    local_G: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the mixture without quantization, in x's dtype (bfloat16, float16 or float32); see `experts`."""
    rows = _routed(x_MK, None, expert_MT, local_G, w13_ENK.shape[0])
    gate_up_RN = _grouped(rows.x_RK, w13_ENK, rows.end_E, x_MK.dtype)
    hidden_RH = operator("npu_swiglu")(gate_up_RN, dim=-1)
    return _combined(_grouped(hidden_RH, w2_EKN, rows.end_E, x_MK.dtype), rows, weight_MT)


def _experts(
    first: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13: tuple[torch.Tensor, torch.Tensor],
    w2: tuple[torch.Tensor, torch.Tensor],
    local_G: torch.Tensor | None,
) -> torch.Tensor:
    _check_experts(*w13, *w2)
    rows = _routed(*quantize_rows(x_MK), expert_MT, local_G, w13[0].shape[0])
    hidden_codes_RH, hidden_scale_R = first(rows, *w13)
    w2_scale_EK = w2[1].to(torch.bfloat16 if x_MK.dtype == torch.bfloat16 else torch.float32)
    scales = {"scale": [w2_scale_EK], "per_token_scale": [hidden_scale_R]}
    return _combined(_grouped(hidden_codes_RH, w2[0], rows.end_E, x_MK.dtype, **scales), rows, weight_MT)


def _check_experts(w13_codes_ENK, w13_scale_EN, w2_codes_EKN, w2_scale_EK) -> None:
    for codes, scale in ((w13_codes_ENK, w13_scale_EN), (w2_codes_EKN, w2_scale_EK)):
        if codes.dtype != torch.int8:
            check_dtype(codes.dtype)
            raise ValueError(f"expert weights in {codes.dtype}: these kernels need int8")
        if scale.shape != codes.shape[:2]:
            raise ValueError(
                f"scales of shape {tuple(scale.shape)} for expert weights of shape {tuple(codes.shape)}: one "
                "scale per row is needed"
            )
        if max(codes.shape[1:]) > LONGEST or codes.shape[0] > MOST_EXPERTS:
            raise ValueError(
                f"expert weights of shape {tuple(codes.shape)}: npu_grouped_matmul supports at most "
                f"{MOST_EXPERTS} experts per rank and sizes of at most {LONGEST}; use more ranks"
            )


def _check_nz(w13_codes_ENK: torch.Tensor) -> None:
    import torch_npu

    found = torch_npu.get_npu_format(w13_codes_ENK)
    if found != FRACTAL_NZ:
        raise ValueError(
            f"w13 is in format {int(found)}: the fused operator needs FRACTAL_NZ ({FRACTAL_NZ}); make it with "
            "npu_formats.new_codes(.., nz=True), or call experts"
        )


def _routed(
    x_MK: torch.Tensor,
    x_scale_M: torch.Tensor | None,
    expert_MT: torch.Tensor,
    local_G: torch.Tensor | None,
    experts_here: int,
) -> Routed:
    number = experts_here
    if local_G is not None:
        number += 1  # the last entry stands for experts of other ranks
        local_MT = local_G[expert_MT]
        expert_MT = torch.where(local_MT < 0, experts_here, local_MT)
    x_RK, place_R, count_E, scale_R = operator("npu_moe_init_routing_v2")(
        x_MK,
        expert_MT.to(torch.int32),
        scale=x_scale_M,
        active_num=-1,  # all: a number of rows would fix the number of tokens when the code is traced
        expert_num=number,
        drop_pad_mode=0,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        quant_mode=-1,
        active_expert_range=[0, experts_here],
        row_idx_type=0,
    )
    return Routed(x_RK, scale_R, place_R, count_E, count_E.cumsum(0))


def _grouped(
    x_RK: torch.Tensor, w_ENK: torch.Tensor, end_E: torch.Tensor, dtype: torch.dtype, **scales: list[torch.Tensor]
) -> torch.Tensor:
    """Return (R, N): each expert's rows times its matrix. Groups are ends, since counts need several experts."""
    [out_RN] = operator("npu_grouped_matmul")(
        [x_RK],
        [w_ENK.transpose(1, 2)],
        split_item=2,
        group_type=0,
        group_list=end_E,
        group_list_type=0,
        output_dtype=dtype,
        **scales,
    )
    return out_RN


def _swiglu_after_product(
    rows: Routed, w13_codes_ENK: torch.Tensor, w13_scale_EN: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes (R, H) and scales (R) of silu(gate) * up, from the product's int32 output."""
    return operator("npu_dequant_swiglu_quant")(
        _grouped(rows.x_RK, w13_codes_ENK, rows.end_E, torch.int32),
        weight_scale=w13_scale_EN,
        activation_scale=rows.scale_R,
        group_index=rows.count_E,
        activate_left=True,
        quant_mode=1,
    )


def _swiglu_in_product(
    rows: Routed, w13_codes_ENK: torch.Tensor, w13_scale_EN: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes (R, H) and scales (R) of silu(gate) * up, with the operator that includes the product."""
    codes_EKN = w13_codes_ENK.transpose(1, 2)
    return grouped_matmul_swiglu_quant(rows.x_RK, codes_EKN, w13_scale_EN, rows.scale_R, rows.end_E)


def _combined(out_RK: torch.Tensor, rows: Routed, weight_MT: torch.Tensor) -> torch.Tensor:
    """Return (M, K): the sum of each token's weighted rows.

    Experts of other ranks are replaced by row 0 with weight 0. If this rank has no rows, row 0 is undefined and may be
    NaN, so it is zeroed first.
    """
    out_RK[:1].masked_fill_(rows.end_E[-1:] == 0, 0)
    weight_MT = weight_MT.masked_fill(rows.place_R.view(weight_MT.shape) < 0, 0).to(out_RK.dtype)
    place_R = rows.place_R.clamp(min=0)
    if out_RK.dtype == torch.bfloat16:  # the only dtype that the operator's documentation lists
        return operator("npu_moe_token_unpermute")(out_RK, place_R, probs=weight_MT)
    out_MTK = out_RK.index_select(0, place_R).view(*weight_MT.shape, -1)
    return torch.bmm(weight_MT.unsqueeze(1), out_MTK).squeeze(1)
