"""Do torch_npu 2.7.1's schemas and Meta kernels take the calls that run here with a newer torch_npu?

In an environment of its own: see older_version.py.
"""

import pytest
import torch
import torch_npu

from npu_host import formats, older_version, recorder
from npu_host.serving_cases import SECOND_NEEDS

BF16, F16, F32, I8, I32 = torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.int32

pytestmark = pytest.mark.skipif(
    not older_version.is_there(), reason=f"{older_version.VARIABLE} is not set: no interpreter with torch_npu 2.7.1"
)


@pytest.fixture
def only_these_calls(monkeypatch):
    """What is recorded while the test runs."""
    monkeypatch.setattr(recorder, "calls", {})
    return recorder.calls


def w8a8_linear():
    codes, per_token = torch_npu.npu_dynamic_quant(torch.randn(4, 64).to(BF16).npu(), dst_type=I8)
    weight = torch_npu.npu_format_cast(torch.ones(64, 32, dtype=I8).npu(), formats.NZ)
    scale = torch.ones(32).npu()
    torch_npu.npu_quant_matmul(codes, weight, scale, pertoken_scale=per_token, output_dtype=BF16)
    torch_npu.npu_quantize(torch.randn(4, 64).npu(), torch.ones(64).npu(), None, torch.qint8, -1, False)
    packed = torch_npu.npu_trans_quant_param(scale)
    torch_npu.npu_quant_matmul(codes, weight, packed, output_dtype=F16)


def w8a8_experts():
    x, ids = torch.randn(4, 64).to(BF16).npu(), torch.tensor([[0, 2], [1, 2], [2, 0], [2, 1]], dtype=I32).npu()
    rows, place, counts, per_token = torch_npu.npu_moe_init_routing_v2(
        x,
        ids,
        active_num=8,
        expert_num=3,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        quant_mode=1,
        active_expert_range=[0, 3],  # without it 2.7.1 fails
    )
    weight = torch_npu.npu_format_cast(torch.ones(3, 64, 128, dtype=I8).npu(), formats.NZ)
    scale = torch.ones(3, 128).npu()
    torch_npu.npu_grouped_matmul_swiglu_quant(rows, weight, counts.cumsum(0), scale, per_token)
    [sums] = torch_npu.npu_grouped_matmul(
        [rows], [weight], split_item=3, group_type=0, group_list=counts, group_list_type=1, output_dtype=I32
    )
    rows, per_token = torch_npu.npu_dequant_swiglu_quant(
        sums, weight_scale=scale, activation_scale=per_token, group_index=counts, activate_left=True, quant_mode=1
    )
    down = torch_npu.npu_format_cast(torch.ones(3, 64, 64, dtype=I8).npu(), formats.NZ)
    [out] = torch_npu.npu_grouped_matmul(
        [rows],
        [down],
        scale=[torch.ones(3, 64, dtype=BF16).npu()],
        per_token_scale=[per_token],
        split_item=2,
        group_type=0,
        group_list=counts,
        group_list_type=1,
        output_dtype=BF16,
    )
    with torch.inference_mode():
        torch_npu.npu_moe_token_unpermute(out, place, probs=torch.ones(4, 2, dtype=BF16).npu())


def verdicts(calls, tmp_path) -> dict[str, str]:
    recorder.write_calls(tmp_path / "calls.json")
    return dict(
        zip([call.operator for call in calls.values()], older_version.verdicts(tmp_path / "calls.json"), strict=True)
    )


def test_torch_npu_2_7_takes_the_int8_path(only_these_calls, tmp_path):
    w8a8_linear()
    w8a8_experts()
    found = verdicts(only_these_calls, tmp_path)
    assert len(found) == 10 and set(found.values()) == {""}, found


def test_torch_npu_2_7_does_not_take_what_is_new(only_these_calls, tmp_path):
    weight = torch_npu.npu_format_cast(torch.ones(2, 16, 32, dtype=I8).npu(), formats.NZ)
    torch_npu.npu_grouped_matmul_swiglu_quant_v2(
        torch.ones(4, 16, dtype=I8).npu(),
        [weight],
        [torch.ones(2, 32).npu()],
        torch.ones(4).npu(),
        torch.tensor([1, 4]).npu(),
        **SECOND_NEEDS,
    )
    torch_npu.npu_dequant_swiglu_quant(torch.randn(4, 64).to(BF16).npu(), quant_mode=1, dst_type=1)
    found = verdicts(only_these_calls, tmp_path)
    assert found["npu::npu_grouped_matmul_swiglu_quant_v2"] == "no such operator"
    assert found["npu::npu_dequant_swiglu_quant"] == "no argument dst_type"


def test_a_call_that_2_7s_meta_kernel_rejects_says_why(only_these_calls, tmp_path):
    w8a8_linear()
    key, call = next((key, call) for key, call in only_these_calls.items() if call.operator == "npu::npu_quant_matmul")
    call.arguments["x1"]["dtype"] = "bfloat16"  # torch_npu 2.13 would take it
    only_these_calls.clear()
    only_these_calls[key] = call
    [verdict] = verdicts(only_these_calls, tmp_path).values()
    assert "x1's type and x2's type should be same" in verdict and "\n" not in verdict
