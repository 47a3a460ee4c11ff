"""What cannot work on this chip or with these versions: is the error one line with the value and what to do?"""

import pytest
import torch
import torch_npu
from naming import has_line_naming

from ascend_quant.kernels.npu import ops as npu_ops
from ascend_quant.kernels.npu.serve import experts as npu_experts
from ascend_quant.kernels.npu.serve import linear as npu_linear
from npu_host import formats

BF16, F16, F32, I8, I32 = torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.int32
FP8 = torch.float8_e4m3fn
SECOND = "npu_grouped_matmul_swiglu_quant_v2"


def one_line(error, call) -> str:
    with pytest.raises(error) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype).npu()


def sized(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor of any size in one element of memory."""
    return torch.ones((1,) * len(shape), dtype=dtype).npu().expand(shape)


@pytest.fixture
def versions(monkeypatch):
    """Makes the installed versions other ones."""

    def pretend(torch_npu_version: str, torch_version: str, cann: str = "") -> None:
        monkeypatch.setattr(torch_npu, "__version__", torch_npu_version)
        monkeypatch.setattr(torch, "__version__", torch_version)
        monkeypatch.setattr(torch_npu._C, "_get_cann_version", {"CANN": cann}.get)

    return pretend


@pytest.fixture
def a5(monkeypatch):
    monkeypatch.setattr(torch_npu.npu, "get_soc_version", lambda: 260)


# ---- operators


def test_a_missing_operator_is_named_with_what_is_installed_and_what_is_needed(versions):
    versions("2.6.0", "2.6.0", "8.2.RC1")
    said = one_line(npu_ops.MissingOperator, lambda: npu_ops.operator("npu_thought_up"))
    assert has_line_naming(said, "npu_thought_up", "torch_npu 2.6.0 with CANN 8.2.RC1:")
    assert "torch_npu 2.7.1 with CANN 8.3.RC1 or newer" in said


def test_a_later_operator_names_its_own_pair(versions, monkeypatch):
    versions("2.7.1", "2.7.1")
    monkeypatch.setattr(npu_ops, "has_operator", lambda name: name != SECOND)
    said = one_line(npu_ops.MissingOperator, lambda: npu_ops.operator(SECOND))
    assert has_line_naming(said, SECOND, "torch_npu 2.7.1: … torch_npu 2.7.1.post2 with CANN 8.5.0")


def test_operators_are_looked_for_in_torch_npu_itself():
    assert npu_ops.has_operator(SECOND) and not npu_ops.has_operator("npu_thought_up")
    assert npu_ops.operator("npu_swiglu") == torch_npu.npu_swiglu


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("npu_dynamic_quant", lambda: npu_linear.linear(of(BF16, 2, 8), of(I8, 8, 4), of(F32, 4))),
        ("npu_quant_matmul", lambda: npu_linear.linear(of(BF16, 2, 8), of(I8, 8, 4), of(F32, 4))),
        (
            "npu_moe_init_routing_v2",
            lambda: npu_experts.plain_experts(
                of(BF16, 2, 8), of(F32, 2, 1), of(I32, 2, 1), of(BF16, 2, 8, 8), of(BF16, 2, 8, 4)
            ),
        ),
    ],
)
def test_serving_says_which_operator_it_misses(monkeypatch, name, call):
    there = npu_ops.has_operator
    monkeypatch.setattr(npu_ops, "has_operator", lambda asked: asked != name and there(asked))
    assert has_line_naming(one_line(npu_ops.MissingOperator, call), name, f"torch_npu {torch_npu.__version__}")


# ---- versions


def test_what_is_installed_here_goes_together():
    npu_ops.check_pair()


@pytest.mark.parametrize(
    "installed",
    [
        ("2.7.1.post2", "2.7.1+cpu", "8.5.0"),
        ("2.7.1.post2", "2.7.1", "8.5.1"),
        ("2.7.1", "2.7.1", "8.3.RC2"),
        ("2.7.1", "2.7.1", ""),  # a CANN that does not tell
        ("2.10.0rc2", "2.10.0", "8.5.0"),  # not in the table
        ("2.10.0.post4+gitabc", "2.10.0", "9.1.0"),
        ("2.10.0.post4", "2.10.0", "10.0.0"),
    ],
)
def test_pairs_that_go_together(versions, installed):
    versions(*installed)
    npu_ops.check_pair()


@pytest.mark.parametrize("torch_version", ["2.11.0+cpu", "2.13.1", "2.1.30"])
def test_torch_npu_for_another_torch(versions, torch_version):
    versions("2.13.0", torch_version)
    said = one_line(npu_ops.WrongPair, npu_ops.check_pair)
    assert has_line_naming(said, "torch_npu 2.13.0", torch_version, "torch==2.13.0")


@pytest.mark.parametrize(
    ("torch_npu_version", "needed", "cann"),
    [
        ("2.7.1", "8.3.RC1", "8.2.RC1"),
        ("2.7.1.post2", "8.5.0", "8.3.RC2"),
        ("2.10.0.post4+gitabc", "9.1.0", "9.0.1"),
        ("2.10.0.post4", "9.1.0", "8.5.0"),
    ],
)
def test_a_cann_that_is_too_old(versions, torch_npu_version, needed, cann):
    versions(torch_npu_version, torch_npu_version.partition(".post")[0], cann)
    said = one_line(npu_ops.WrongPair, npu_ops.check_pair)
    assert has_line_naming(said, f"torch_npu {torch_npu_version}", f"CANN {needed}", f"CANN {cann}")


# ---- formats and dtypes


@pytest.mark.parametrize("acl_format", npu_ops.A5_FORMATS)
def test_a_format_of_a5(acl_format):
    said = one_line(ValueError, lambda: npu_ops.check_cast(of(I8, 32, 32), acl_format))
    name = f"FRACTAL_NZ_{npu_ops.A5_FORMATS[acl_format]}"
    assert has_line_naming(said, f"format {acl_format} ({name})", "Ascend 950 (A5)", "Ascend910B1")
    assert torch_npu.Format(acl_format).name == name


@pytest.mark.parametrize("dtype", [FP8, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2])
def test_a_dtype_of_a5(dtype):
    said = one_line(ValueError, lambda: npu_ops.check_dtype(dtype))
    assert has_line_naming(said, dtype, "Ascend 950 (A5)", "Ascend910B1:", "scheme int8")


def test_fp8_codes_are_refused_before_any_operator_runs():
    codes_KN = torch.ones(8, 4).to(FP8)
    assert f"{FP8} needs Ascend 950" in one_line(
        ValueError, lambda: npu_linear.linear(of(BF16, 2, 8), codes_KN, of(F32, 4))
    )
    assert f"{FP8} needs Ascend 950" in one_line(ValueError, lambda: npu_ops.check_cast(codes_KN, formats.NZ))


def test_a5_may_have_both(a5):
    npu_ops.check_dtype(FP8)
    npu_ops.check_cast(of(F32, 32, 32), 51)
    npu_ops.check_cast(torch.ones(8, 4).to(FP8), formats.NZ)


NOT_FOR_NZ = {
    "float32": lambda: of(F32, 32, 32),
    "int32": lambda: of(I32, 32, 32),
    "a vector": lambda: of(I8, 32),
    "four dimensions": lambda: of(I8, 2, 2, 32, 32),
}


@pytest.mark.parametrize("name", NOT_FOR_NZ)
def test_what_fractal_nz_cannot_hold(name):
    tensor = NOT_FOR_NZ[name]()
    said = one_line(ValueError, lambda: npu_ops.check_cast(tensor, formats.NZ))
    value = str(tensor.dtype) if tensor.dtype in (F32, I32) else str(tuple(tensor.shape))
    assert said.startswith("FRACTAL_NZ") and value in said and "keep it ND" in said
    npu_ops.check_cast(tensor, formats.ND)


@pytest.mark.parametrize("dtype", [I8, F16, BF16])
@pytest.mark.parametrize("shape", [(32, 32), (2, 24, 40)])
def test_what_passes_is_cast(dtype, shape):
    npu_ops.check_cast(of(dtype, *shape), formats.NZ)
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(of(dtype, *shape), formats.NZ)) == formats.NZ


# ---- serving


def linear(x=(BF16, 2, 8), codes=(I8, 8, 4), bias=None):
    bias_N = None if bias is None else of(*bias)
    return npu_linear.linear(sized(*x), sized(*codes), sized(F32, codes[2]), bias_N)


def experts(form, e=2, k=8, h=64, x=BF16, codes=I8, scale=None):
    w13, w2 = sized(codes, e, 2 * h, k), sized(codes, e, k, h)
    w13_scale_EN = sized(F32, *(scale or (e, 2 * h)))
    ids, weight_MT = torch.zeros(3, 1, dtype=I32).npu(), torch.ones(3, 1).npu()
    return form(of(x, 3, k), weight_MT, ids, w13, w13_scale_EN, w2, sized(F32, e, k))


apart, fused = npu_experts.experts, npu_experts.fused_experts
BAD = {
    "x in float32": (lambda: linear(x=(F32, 2, 8)), "torch.float32", "bfloat16"),
    "codes in int32": (lambda: linear(codes=(I32, 8, 4)), "torch.int32", "int8"),
    "another K": (lambda: linear(codes=(I8, 9, 4)), "x of K = 8", "(9, 4)"),
    "K too long": (lambda: linear((BF16, 2, 65536), (I8, 65536, 4)), "(65536, 4)", "65535"),
    "N too long": (lambda: linear(codes=(I8, 8, 65536)), "(8, 65536)", "65535"),
    "an integer bias": (lambda: linear(bias=(I32, 4)), "torch.int32", "float32"),
    "H not in steps": (lambda: experts(apart, h=40), "intermediate size 40", "fused_experts"),
    "H too wide": (lambda: experts(apart, h=10560), "intermediate size 10560", "fused_experts"),
    "2H too wide": (lambda: experts(fused, h=5184), "= 10368", str(npu_experts.WIDEST_FUSED)),
    "w13 in ND": (lambda: experts(fused), "w13 is in format", "FRACTAL_NZ (29)"),
    "experts for x in float32": (lambda: experts(apart, x=F32), "torch.float32", "bfloat16"),
    "experts' codes in int16": (lambda: experts(apart, codes=torch.int16), "torch.int16", "int8"),
    "scales of another shape": (lambda: experts(apart, scale=(2, 64)), "(2, 64)", "(2, 128"),
    "too many experts": (lambda: experts(apart, e=1025), "(1025, 128, 8)", "1024"),
    "experts' K too long": (lambda: experts(apart, k=65536), "(2, 128, 65536)", "65535"),
}


@pytest.mark.parametrize("name", BAD)
def test_serving_refuses(name):
    call, value, what_to_do = BAD[name]
    said = one_line(ValueError, call)
    assert value in said and what_to_do in said
