"""Rules of the hardware that a change of the kernels may break: one line with the operator and the value."""

import pytest
import torch
import torch_npu

from npu_host import formats, rules
from npu_host.serving_cases import SECOND_NEEDS

BF16, F32, I8, I32, I64 = torch.bfloat16, torch.float32, torch.int8, torch.int32, torch.int64
WIDE = 65536


def of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype).npu()


def nz(*shape: int) -> torch.Tensor:
    return torch_npu.npu_format_cast(of(I8, *shape), formats.NZ)


def second_fused(weight, weight_scale, **arguments):
    return torch_npu.npu_grouped_matmul_swiglu_quant_v2(
        weight=[weight], weight_scale=[weight_scale], **arguments, **SECOND_NEEDS
    )


EXPERTS = {"x": lambda: of(I8, 4, 16), "group_list": lambda: torch.tensor([1, 4]).npu()}
FUSED = EXPERTS | {
    "weight": lambda: nz(2, 16, 8),
    "weight_scale": lambda: of(F32, 2, 8),
    "x_scale": lambda: of(F32, 4),
}
CALLS = {  # of each operator: the function, and arguments that keep the rules
    "npu_dynamic_quant": (torch_npu.npu_dynamic_quant, {"input": lambda: of(BF16, 2, 4)}),
    "npu_quantize": (
        torch_npu.npu_quantize,
        {
            "input": lambda: of(F32, 2, 4),
            "scales": lambda: of(F32, 4),
            "zero_points": None,
            "dtype": torch.qint8,
            "axis": -1,
        },
    ),
    "npu_quant_matmul": (
        torch_npu.npu_quant_matmul,
        {
            "x1": lambda: of(I8, 2, 16),
            "x2": lambda: of(I8, 16, 8),
            "scale": lambda: of(F32, 8),
            "pertoken_scale": lambda: of(F32, 2),
            "output_dtype": BF16,
        },
    ),
    "npu_grouped_matmul": (
        torch_npu.npu_grouped_matmul,
        {
            "x": lambda: [of(I8, 4, 16)],
            "weight": lambda: [of(I8, 2, 16, 8)],
            "scale": lambda: [of(BF16, 2, 8)],
            "per_token_scale": lambda: [of(F32, 4)],
            "group_list": lambda: torch.tensor([1, 3]).npu(),
            **{"group_list_type": 1, "group_type": 0, "split_item": 2, "output_dtype": BF16},
        },
    ),
    "npu_grouped_matmul_swiglu_quant": (torch_npu.npu_grouped_matmul_swiglu_quant, FUSED),
    "npu_grouped_matmul_swiglu_quant_v2": (second_fused, FUSED),
    "npu_dequant_swiglu_quant": (
        torch_npu.npu_dequant_swiglu_quant,
        {
            "x": lambda: of(I32, 4, 128),
            "weight_scale": lambda: of(F32, 2, 128),
            "activation_scale": lambda: of(F32, 4),
            "group_index": lambda: torch.tensor([1, 3]).npu(),
            "quant_mode": 1,
        },
    ),
    "npu_moe_init_routing_v2": (
        torch_npu.npu_moe_init_routing_v2,
        {
            "x": lambda: of(BF16, 3, 4),
            "expert_idx": lambda: of(I32, 3, 2),
            **{"expert_num": 4, "expert_tokens_num_type": 1, "expert_tokens_num_flag": True, "quant_mode": -1},
        },
    ),
    "npu_format_cast": (torch_npu.npu_format_cast, {"self": lambda: of(I8, 4, 4), "acl_format": formats.NZ}),
}
BROKEN = [  # the operator, the value that its error must show, what is given instead
    ("npu_dynamic_quant", "float32[2, 4]", {"input": lambda: of(F32, 2, 4)}),
    ("npu_quantize", "int8[2, 4]", {"input": lambda: of(I8, 2, 4)}),
    ("npu_quant_matmul", "int8[2, 65536]", {"x1": lambda: of(I8, 2, WIDE), "x2": lambda: of(I8, WIDE, 8)}),
    ("npu_quant_matmul", "int8[16, 8] NZ", {"x2": lambda: nz(8, 16).t()}),
    ("npu_quant_matmul", "int8[16, 8] NZ", {"x2": lambda: nz(3, 16, 8)[1]}),
    ("npu_quant_matmul", "bfloat16[2]", {"pertoken_scale": lambda: of(BF16, 2)}),
    ("npu_quant_matmul", "[float32, per-token, scale, float32, bias, None]", {"output_dtype": F32}),
    ("npu_grouped_matmul", "float32[2, 8]", {"scale": lambda: [of(F32, 2, 8)]}),
    ("npu_grouped_matmul", "int8[4, 24]", {"x": lambda: [of(I8, 4, 24)]}),
    ("npu_grouped_matmul", "int8[2, 16, 8] NZ", {"weight": lambda: [nz(3, 16, 8)[:2]]}),
    ("npu_grouped_matmul", "for, 2, experts", {"group_list": lambda: of(I64, 3)}),
    ("npu_grouped_matmul", "[2, 3, for, 4, rows]", {"group_list": lambda: torch.tensor([2, 3]).npu()}),
    *(
        (f"npu_grouped_matmul_swiglu_quant{version}", value, changed)
        for version in ("", "_v2")
        for value, changed in (
            ("int8[2, 16, 8]", {"weight": lambda: of(I8, 2, 16, 8)}),
            ("int8[2, 16, 10242]", {"weight": lambda: nz(2, 16, 10242), "weight_scale": lambda: of(F32, 2, 10242)}),
            ("[3, -1, for, 4, rows]", {"group_list": lambda: torch.tensor([3, 2]).npu()}),
        )
    ),
    ("npu_dequant_swiglu_quant", "activation_scale=None", {"activation_scale": None}),
    ("npu_dequant_swiglu_quant", "32", {"x": lambda: of(I32, 4, 64), "weight_scale": lambda: of(F32, 2, 64)}),
    ("npu_dequant_swiglu_quant", "[2, 3, for, 4, rows]", {"group_index": lambda: torch.tensor([2, 3]).npu()}),
    ("npu_moe_init_routing_v2", "int64[3, 2]", {"expert_idx": lambda: of(I64, 3, 2)}),
    ("npu_moe_init_routing_v2", "[2, 5, of, 4]", {"active_expert_range": [2, 5]}),
    ("npu_format_cast", "float32[4, 4]", {"self": lambda: of(F32, 4, 4)}),
    ("npu_format_cast", "int8[4, 8] strided", {"self": lambda: of(I8, 8, 4).t()}),
]


def call(name: str, changed: dict) -> None:
    function, arguments = CALLS[name]
    given = {key: value() if callable(value) else value for key, value in (arguments | changed).items()}
    first = [given.pop(key) for key in ("self", "input", "x1", "x2", "scales", "zero_points", "dtype") if key in given]
    function(*first, **given)


def test_a_broken_rule_is_told_with_the_operator_and_the_value():
    for name, value, changed in BROKEN:
        call(name, {})  # is fine
        with pytest.raises(rules.RuleBroken) as caught:
            call(name, changed)
        said = str(caught.value)
        assert said.startswith(f"npu::{name}: ") and value in said.partition("; got ")[2] and "\n" not in said, name


def test_a_cast_is_refused_that_torch_npu_would_leave_out():
    torch.npu.config.allow_internal_format = False
    try:
        with pytest.raises(rules.RuleBroken, match="allow_internal_format = False"):
            call("npu_format_cast", {})
    finally:
        torch.npu.config.allow_internal_format = True
