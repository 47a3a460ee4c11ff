"""Each rule of the hardware, broken once: is the error one line that names the rule and the value?"""

import pytest
import torch
import torch_npu

from npu_host import formats, rules
from npu_host.serving_cases import SECOND_NEEDS

BF16, F16, F32, I8, I32, I64 = torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.int32, torch.int64


def of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype).npu()


def nz(*shape: int) -> torch.Tensor:
    return torch_npu.npu_format_cast(of(I8, *shape), formats.NZ)


def with_option_off(call):
    def run():
        torch.npu.config.allow_internal_format = False
        try:
            return call()
        finally:
            torch.npu.config.allow_internal_format = True

    return run


def dynamic_quant(x=None, **changes):
    return lambda: torch_npu.npu_dynamic_quant(of(BF16, 2, 4) if x is None else x(), **changes)


def quantize(x=F32, scales=F32, dtype=torch.qint8, axis=-1, divide=True, zero=None):
    return lambda: torch_npu.npu_quantize(
        of(x, 2, 2, 4), of(scales, 4), None if zero is None else of(zero, 4), dtype, axis, divide
    )


def quant_matmul(**changes):
    def run():
        arguments = dict(
            x1=of(I8, 2, 16),
            x2=of(I8, 16, 8),
            scale=of(F32, 8),
            pertoken_scale=of(F32, 2),
            output_dtype=BF16,
        )
        arguments.update({name: value() if callable(value) else value for name, value in changes.items()})
        return torch_npu.npu_quant_matmul(arguments.pop("x1"), arguments.pop("x2"), arguments.pop("scale"), **arguments)

    return run


def grouped(**changes):
    def run():
        arguments = dict(
            x=[of(I8, 4, 16)],
            weight=[of(I8, 2, 16, 8)],
            scale=[of(BF16, 2, 8)],
            per_token_scale=[of(F32, 4)],
            group_list=torch.tensor([1, 3]).npu(),
            group_list_type=1,
            group_type=0,
            split_item=2,
            output_dtype=BF16,
        )
        arguments.update({name: value() if callable(value) else value for name, value in changes.items()})
        return torch_npu.npu_grouped_matmul(**arguments)

    return run


def fused(version: int, **changes):
    def run():
        arguments = dict(
            x=of(I8, 4, 16),
            weight=nz(2, 16, 8),
            weight_scale=of(F32, 2, 8),
            x_scale=of(F32, 4),
            group_list=torch.tensor([1, 4]).npu(),
        )
        arguments.update({name: value() if callable(value) else value for name, value in changes.items()})
        if version == 1:
            return torch_npu.npu_grouped_matmul_swiglu_quant(**arguments)
        listed = {name: [arguments[name]] for name in ("weight", "weight_scale")}
        return torch_npu.npu_grouped_matmul_swiglu_quant_v2(**{**arguments, **listed}, **SECOND_NEEDS)

    return run


def dequant_swiglu(**changes):
    def run():
        arguments = dict(
            x=of(I32, 4, 128),
            weight_scale=of(F32, 2, 128),
            activation_scale=of(F32, 4),
            group_index=torch.tensor([1, 3]).npu(),
            quant_mode=1,
        )
        arguments.update({name: value() if callable(value) else value for name, value in changes.items()})
        return torch_npu.npu_dequant_swiglu_quant(arguments.pop("x"), **arguments)

    return run


def routing(**changes):
    def run():
        arguments = dict(
            x=of(BF16, 3, 4),
            expert_idx=of(I32, 3, 2),
            expert_num=4,
            expert_tokens_num_type=1,
            expert_tokens_num_flag=True,
            quant_mode=-1,
        )
        arguments.update({name: value() if callable(value) else value for name, value in changes.items()})
        return torch_npu.npu_moe_init_routing_v2(**arguments)

    return run


def gating(x=F32, bias=None, **changes):
    def run():
        logits = x() if callable(x) else of(x, 3, 8)
        return torch_npu.npu_moe_gating_top_k(
            logits, **{"k": 2, "bias": None if bias is None else of(bias, 8), **changes}
        )

    return run


def cast(x, acl_format=29, **changes):
    return lambda: torch_npu.npu_format_cast(x(), acl_format, **changes)


def unpermute(tokens=BF16, indices=I32, probs=BF16, last=1, **changes):
    return lambda: torch_npu.npu_moe_token_unpermute(
        of(tokens, 2, 4), torch.tensor([0, last], dtype=indices).npu(), of(probs, 2, 1), **changes
    )


def permute(tokens=BF16, indices=I64, **changes):
    return lambda: torch_npu.npu_moe_token_permute(of(tokens, 2, 4), of(indices, 2, 1), **changes)


WIDE = 65536
NEGATIVE = torch.tensor([-1, 3])

CASES = [  # rule, the value that its error must show, a call that breaks it
    ("dynamic_quant.input", "float32[2, 4]", dynamic_quant(lambda: of(F32, 2, 4))),
    ("dynamic_quant.dim", "bfloat16[4]", dynamic_quant(lambda: of(BF16, 4))),
    ("dynamic_quant.int8", "quint8", dynamic_quant(dst_type=torch.quint8)),
    ("dynamic_quant.per-token", "pertensor", dynamic_quant(quant_mode="pertensor")),
    (
        "dynamic_quant.absent",
        "group_index=int32[1]",
        lambda: dynamic_quant(smooth_scales=of(BF16, 1, 4), group_index=torch.tensor([2], dtype=I32).npu())(),
    ),
    ("dynamic_quant.smooth", "float16[4]", lambda: dynamic_quant(smooth_scales=of(F16, 4))()),
    ("quantize.input", "int8[2, 2, 4]", quantize(x=I8)),
    ("quantize.scales", "float16[4]", quantize(scales=F16)),
    ("quantize.scales", "float32[4]", quantize(x=BF16, divide=False)),
    ("quantize.dtype", "quint8", quantize(dtype=torch.quint8, divide=False)),
    ("quantize.axis", "0", quantize(axis=0, divide=False)),
    ("quantize.zero-points", "float32[4]", quantize(zero=F32)),
    ("quant_matmul.x1", "bfloat16[2, 16]", quant_matmul(x1=lambda: of(BF16, 2, 16))),
    ("quant_matmul.x2", "bfloat16[16, 8]", quant_matmul(x2=lambda: of(BF16, 16, 8))),
    ("quant_matmul.last-dim", "int8[2, 65536]", quant_matmul(x1=lambda: of(I8, 2, WIDE), x2=lambda: of(I8, WIDE, 8))),
    ("quant_matmul.nz-whole", "int8[16, 8] NZ", quant_matmul(x2=lambda: nz(8, 16).t())),
    ("quant_matmul.nz-whole", "int8[16, 8] NZ", quant_matmul(x2=lambda: nz(3, 16, 8)[1])),
    ("quant_matmul.per-token", "float32[3]", quant_matmul(pertoken_scale=lambda: of(F32, 3))),
    ("quant_matmul.per-token", "bfloat16[2]", quant_matmul(pertoken_scale=lambda: of(BF16, 2))),
    ("quant_matmul.combination", "[float32, per-token, scale, float32, bias, None]", quant_matmul(output_dtype=F32)),
    ("quant_matmul.combination", "scale, float16", quant_matmul(scale=lambda: of(F16, 8))),
    ("quant_matmul.combination", "scale, int64", quant_matmul(scale=lambda: of(I64, 8), output_dtype=F16)),
    (
        "quant_matmul.combination",
        "[int8, no per-token, scale, float32, bias, float32]",
        quant_matmul(bias=lambda: of(F32, 8), output_dtype=None, pertoken_scale=None),
    ),
    ("quant_matmul.combination", "[int8, per-token", quant_matmul(output_dtype=None)),
    ("quant_matmul.offset", "float32[8]", quant_matmul(offset=lambda: of(F32, 8))),
    ("quant_matmul.absent", "group_sizes=[0, 0, 0]", quant_matmul(group_sizes=[0, 0, 0])),
    ("grouped_matmul.split", "split_item=0", grouped(split_item=0)),
    ("grouped_matmul.dtypes", "float32[2, 8]", grouped(scale=lambda: [of(F32, 2, 8)])),
    ("grouped_matmul.dtypes", "bfloat16[2, 8]", grouped(output_dtype=F16)),
    ("grouped_matmul.dtypes", "bfloat16[4, 16]", grouped(x=lambda: [of(BF16, 4, 16)])),
    ("grouped_matmul.bias", "float32[2, 8]", grouped(bias=lambda: [of(F32, 2, 8)])),
    ("grouped_matmul.reduction", "int8[4, 24]", grouped(x=lambda: [of(I8, 4, 24)])),
    (
        "grouped_matmul.reduction",
        "int8[2, 16, 65536]",
        grouped(weight=lambda: [of(I8, 2, 16, WIDE)], scale=lambda: [of(BF16, 2, WIDE)]),
    ),
    ("grouped_matmul.nz-whole", "int8[2, 16, 8] NZ", grouped(weight=lambda: [nz(3, 16, 8)[:2]])),
    ("grouped_matmul.per-token", "bfloat16[4]", grouped(per_token_scale=lambda: [of(BF16, 4)])),
    ("grouped_matmul.group-list", "int32[2]", grouped(group_list=lambda: of(I32, 2))),
    ("grouped_matmul.groups", "for, 2, experts", grouped(group_list=lambda: of(I64, 3))),
    (
        "grouped_matmul.groups",
        "for, 1025, experts",
        grouped(
            weight=lambda: [of(I8, 1025, 16, 1)], scale=lambda: [of(BF16, 1025, 1)], group_list=lambda: of(I64, 1025)
        ),
    ),
    (
        "grouped_matmul.groups",
        "for, 129, experts",
        grouped(
            weight=lambda: [of(I8, 16, 1)] * 129, scale=lambda: [of(BF16, 1)] * 129, group_list=lambda: of(I64, 129)
        ),
    ),
    (
        "grouped_matmul.count-list",
        "int64[1]",
        grouped(weight=lambda: [of(I8, 1, 16, 8)], scale=lambda: [of(BF16, 1, 8)], group_list=lambda: of(I64, 1)),
    ),
    ("grouped_matmul.group-values", "[-1, 3, for, 4, rows]", grouped(group_list=lambda: NEGATIVE.npu())),
    ("grouped_matmul.group-values", "[2, 3, for, 4, rows]", grouped(group_list=lambda: torch.tensor([2, 3]).npu())),
    ("grouped_matmul.activation", "act_type=1", grouped(act_type=1)),
    ("grouped_matmul.absent", "offset=[float32[2, 8]]", grouped(offset=lambda: [of(F32, 2, 8)])),
    *(
        (f"{name}.{rule}", value, fused(version, **changes))
        for version, name in ((1, "gmm_swiglu_quant"), (2, "gmm_swiglu_quant_v2"))
        for rule, value, changes in (
            ("input", "bfloat16[4, 16]", dict(x=lambda: of(BF16, 4, 16))),
            ("weight", "int32[2, 16, 8]", dict(weight=lambda: of(I32, 2, 16, 8))),
            ("weight-nz", "int8[2, 16, 8]", dict(weight=lambda: of(I8, 2, 16, 8))),
            ("nz-whole", "int8[2, 16, 8] NZ", dict(weight=lambda: nz(3, 16, 8)[:2])),
            ("shapes", "float32[8]", dict(weight_scale=lambda: of(F32, 8))),
            ("reduction", "int8[4, 24]", dict(x=lambda: of(I8, 4, 24))),
            (
                "columns",
                "int8[2, 16, 10242]",
                dict(weight=lambda: nz(2, 16, 10242), weight_scale=lambda: of(F32, 2, 10242)),
            ),
            ("weight-scale", "float64[2, 8]", dict(weight_scale=lambda: of(torch.float64, 2, 8))),
            ("x-scale", "bfloat16[4]", dict(x_scale=lambda: of(BF16, 4))),
            ("x-scale", "float32[5]", dict(x_scale=lambda: of(F32, 5))),
            ("group-list", "int32[2]", dict(group_list=lambda: of(I32, 2))),
            ("groups", "[3, -1, for, 4, rows]", dict(group_list=lambda: torch.tensor([3, 2]).npu())),
            ("absent", "bias=int32[2, 8]", dict(bias=lambda: of(I32, 2, 8))),
        )
    ),
    ("dequant_swiglu_quant.input", "float32[4, 128]", dequant_swiglu(x=lambda: of(F32, 4, 128))),
    ("dequant_swiglu_quant.dynamic", "quant_mode=0", dequant_swiglu(quant_mode=0)),
    ("dequant_swiglu_quant.plain", "swiglu_mode=1", dequant_swiglu(swiglu_mode=1)),
    ("dequant_swiglu_quant.scales", "activation_scale=None", dequant_swiglu(activation_scale=None)),
    ("dequant_swiglu_quant.scales", "bfloat16[4, 128]", dequant_swiglu(x=lambda: of(BF16, 4, 128))),
    ("dequant_swiglu_quant.weight-scale", "bfloat16[2, 128]", dequant_swiglu(weight_scale=lambda: of(BF16, 2, 128))),
    ("dequant_swiglu_quant.activation-scale", "float32[3]", dequant_swiglu(activation_scale=lambda: of(F32, 3))),
    ("dequant_swiglu_quant.group-index", "int32[2]", dequant_swiglu(group_index=lambda: of(I32, 2))),
    ("dequant_swiglu_quant.shapes", "3, groups", dequant_swiglu(group_index=lambda: of(I64, 3))),
    ("dequant_swiglu_quant.width", "32", dequant_swiglu(x=lambda: of(I32, 4, 64), weight_scale=lambda: of(F32, 2, 64))),
    (
        "dequant_swiglu_quant.groups",
        "[2, 3, for, 4, rows]",
        dequant_swiglu(group_index=lambda: torch.tensor([2, 3]).npu()),
    ),
    ("dequant_swiglu_quant.absent", "quant_scale=float32[2, 64]", dequant_swiglu(quant_scale=lambda: of(F32, 2, 64))),
    ("swiglu.input", "int8[2, 4]", lambda: torch_npu.npu_swiglu(of(I8, 2, 4))),
    ("swiglu.even", "float32[2, 3]", lambda: torch_npu.npu_swiglu(of(F32, 2, 3))),
    ("trans_quant_param.scale", "float32[4] strided", lambda: torch_npu.npu_trans_quant_param(of(F32, 8)[::2])),
    ("trans_quant_param.scale", "bfloat16[4]", lambda: torch_npu.npu_trans_quant_param(of(BF16, 4))),
    ("trans_quant_param.absent", "offset=float32[4]", lambda: torch_npu.npu_trans_quant_param(of(F32, 4), of(F32, 4))),
    ("trans_quant_param.round-mode", "1", lambda: torch_npu.npu_trans_quant_param(of(F32, 4), round_mode=1)),
    ("format_cast.target", "3", cast(lambda: of(I8, 4, 4), acl_format=3)),
    ("format_cast.customize-dtype", "customize_dtype=1", cast(lambda: of(I8, 4, 4), customize_dtype=1)),
    ("format_cast.allowed", "allow_internal_format = False", with_option_off(cast(lambda: of(I8, 4, 4)))),
    ("format_cast.matrix", "float32[4, 4]", cast(lambda: of(F32, 4, 4))),
    ("format_cast.matrix", "int8[4]", cast(lambda: of(I8, 4))),
    ("format_cast.whole", "int8[4, 8] strided", cast(lambda: of(I8, 8, 4).t())),
    ("format_cast.whole", "int8[4, 8]", cast(lambda: of(I8, 2, 4, 8)[1])),
    ("format_cast.whole", "int8[16, 32] NZ", cast(lambda: nz(2, 16, 32)[1], acl_format=2)),
    ("init_routing.input", "int32[3, 4]", routing(x=lambda: of(I32, 3, 4))),
    ("init_routing.experts", "int64[3, 2]", routing(expert_idx=lambda: of(I64, 3, 2))),
    ("init_routing.range", "[2, 5, of, 4]", routing(active_expert_range=[2, 5])),
    ("init_routing.ids", "4", routing(expert_idx=lambda: of(I32, 3, 2) * 4)),
    ("init_routing.modes", "expert_tokens_num_type=0", routing(expert_tokens_num_type=0)),
    ("init_routing.quant", "int8[3, 4]", routing(x=lambda: of(I8, 3, 4), quant_mode=1)),
    ("init_routing.scale", "bfloat16[3]", routing(scale=lambda: of(BF16, 3))),
    ("gating_top_k.input", "int32[3, 8]", gating(I32)),
    ("gating_top_k.bias", "bfloat16[8]", gating(bias=BF16)),
    ("gating_top_k.experts", "float32[3, 2049]", gating(lambda: of(F32, 3, 2049))),
    ("gating_top_k.k", "[9, of, float32[3, 8]]", gating(k=9)),
    ("gating_top_k.renorm", "1", gating(renorm=1)),
    ("gating_top_k.one-group", "group_count=2", gating(group_count=2, k_group=2)),
    ("token_permute.input", "float32[2, 4]", permute(tokens=F32)),
    ("token_permute.indices", "int8[2, 1]", permute(indices=I8)),
    ("token_permute.padding", "padded_mode=True", permute(padded_mode=True)),
    ("token_unpermute.input", "float32[2, 4]", unpermute(tokens=F32)),
    ("token_unpermute.indices", "int64[2]", unpermute(indices=I64)),
    ("token_unpermute.indices", "for, 2, rows", unpermute(last=-1)),
    ("token_unpermute.probs", "float32[2, 1]", unpermute(probs=F32)),
    ("token_unpermute.padding", "padded_mode=True", unpermute(padded_mode=True)),
]


@pytest.mark.parametrize(("rule", "value", "call"), CASES, ids=[f"{rule}-{value}" for rule, value, _ in CASES])
def test_a_broken_rule_is_named_with_the_value(rule, value, call):
    with pytest.raises(rules.RuleBroken) as caught:
        call()
    message = str(caught.value)
    assert f" rule {rule}: " in message and value in message.partition("; got ")[2]
    assert "\n" not in message


@pytest.mark.parametrize(
    "call",
    [
        dynamic_quant(),
        quantize(),
        quant_matmul(),
        grouped(),
        fused(1),
        fused(2),
        dequant_swiglu(),
        routing(),
        gating(),
        cast(lambda: of(I8, 4, 4)),
        permute(),
        unpermute(),
    ],
)
def test_the_calls_above_are_fine_before_they_are_broken(call):
    call()


def test_every_rule_is_broken_by_a_case():
    known = {rule.id for table in rules.RULES.values() for rule in table}
    assert known == {rule for rule, _, _ in CASES}


def test_what_the_real_meta_kernels_reject_does_not_reach_the_rules():
    with pytest.raises(RuntimeError, match="k dim of x1 and x2 need be same") as caught:
        quant_matmul(x1=lambda: of(I8, 2, 24))()
    assert not isinstance(caught.value, rules.RuleBroken)
