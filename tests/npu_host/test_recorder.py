"""Is what was called recorded with its dtypes, formats and rules, once a kind, and told in a table?"""

import pytest
import torch
import torch_npu

from npu_host import formats, recorder, rules

BF16, I8 = torch.bfloat16, torch.int8


@pytest.fixture
def calls(monkeypatch):
    monkeypatch.setattr(recorder, "calls", {})
    return recorder.calls


def matmul(rows: int, nz: bool) -> None:
    codes, per_token = torch_npu.npu_dynamic_quant(torch.randn(rows, 64).to(BF16).npu())
    weight = torch.ones(64, 32, dtype=I8).npu()
    weight = torch_npu.npu_format_cast(weight, formats.NZ) if nz else weight
    torch_npu.npu_quant_matmul(codes, weight, torch.ones(32).npu(), pertoken_scale=per_token, output_dtype=BF16)


def test_calls_that_differ_in_sizes_alone_count_once(calls):
    for rows in (1, 4, 7):
        matmul(rows, nz=True)
    assert [call.operator for call in calls.values()] == [
        "npu::npu_dynamic_quant",
        "npu::npu_format_cast",
        "npu::npu_quant_matmul",
    ]
    matmul(4, nz=False)
    assert len(calls) == 4


def test_calls_that_do_something_else_count_apart(calls):
    rows, weight = torch.ones(4, 64, dtype=I8).npu(), torch.ones(2, 64, 32, dtype=I8).npu()
    for counts, kind in (([2, 4], 0), ([2, 2], 1), ([1, 4], 0)):
        groups = torch.tensor(counts).npu()
        torch_npu.npu_grouped_matmul(
            [rows],
            [weight],
            split_item=3,
            group_type=0,
            group_list=groups,
            group_list_type=kind,
            output_dtype=torch.int32,
        )
    assert [call.arguments["group_list_type"] for call in calls.values()] == [0, 1]


def test_a_call_holds_dtypes_formats_and_rules(calls):
    matmul(4, nz=True)
    call = list(calls.values())[-1]
    assert recorder.shown_value(call.arguments["x2"]) == "int8 2-D NZ"
    assert call.arguments["output_dtype"] == {"dtype": "bfloat16"}
    assert "bias" in call.defaults and "x2" not in call.defaults
    assert call.rules == tuple(rule.id for rule in rules.RULES["npu::npu_quant_matmul"])


def test_a_failed_call_is_not_recorded(calls):
    with pytest.raises(rules.RuleBroken):
        torch_npu.npu_dynamic_quant(torch.ones(2, 4).npu())
    assert not calls


def test_the_table_has_a_row_for_each_call_of_the_packages_that_matter(calls):
    code = "torch_npu.npu_swiglu(torch.ones(2, 4).npu())"
    exec(code, {"torch": torch, "torch_npu": torch_npu, "__name__": "ascend_quant.kernels.made_up"})
    matmul(4, nz=False)  # called by a test: no row
    table = recorder.table("a test", {"2.7.1": ["no such operator", "", ""], "2.13.0": ["", "", ""]})
    assert [line for line in table.splitlines() if line.startswith("| `")] == [
        "| `npu::npu_swiglu` | `ascend_quant.kernels.made_up` | input: float32 2-D | no such operator | yes |",
        "| `npu::npu_swiglu` | input, even |",
    ]
