"""Our W8A8 linear layer on npu:0: bit-equal to what the operators' documentation says, and to the oracle."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_quant import oracle
from ascend_quant.kernels import npu
from ascend_quant.kernels.npu.serve import linear as npu_linear
from npu_host.serving_cases import BF16, F16, F32, activations, generator, int8, resident, scales, sums_of

pytestmark = pytest.mark.each_version

quick = settings(max_examples=25, deadline=None, derandomize=True)
seeds = st.integers(0, 2**20)
dtypes = st.sampled_from([BF16, F16])


@quick
@given(seeds, st.tuples(*[st.integers(1, 70)] * 3), dtypes, st.booleans(), st.sampled_from([None, "own", F32]))
def test_linear_rounds_once(seed, size, dtype, nz, bias):
    m, k, n = size
    x_MK, codes_NK, scale_N = activations(seed, m, k, dtype), int8(seed, n, k), scales(seed, n)
    if bias is not None:
        bias = torch.randn(n, generator=generator(seed)).to(dtype if bias == "own" else bias)
    on_npu = None if bias is None else bias.npu()
    found = npu_linear.linear(x_MK.npu(), resident(codes_NK, nz), scale_N.npu(), on_npu)
    x_codes_MK, x_scale_M = (part.cpu() for part in npu_linear.quantize_rows(x_MK.npu()))
    expected = sums_of(x_codes_MK, codes_NK) * scale_N * x_scale_M.unsqueeze(1)
    expected = expected if bias is None else expected + bias.float()
    assert found.dtype == dtype and torch.equal(found.cpu(), expected.to(dtype))


@pytest.mark.parametrize("nz", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_linear_is_the_oracles_rounded(nz, biased, m, dtype):
    """Bit for bit, but that a bias is added to a rounded product, where the oracle has a fused multiply-add."""
    x_MK, codes_NK, scale_N = activations(m, m, 96, dtype), int8(m, 80, 96), scales(m, 80)
    bias_N = torch.randn(80).to(dtype) if biased else None
    expected = oracle.matmul(x_MK, codes_NK, scale_N)
    expected = (expected if bias_N is None else expected + bias_N.float()).to(dtype)
    on_npu = x_MK.npu(), resident(codes_NK, nz).t(), scale_N.npu(), None if bias_N is None else bias_N.npu()
    assert torch.equal(npu.matmul(*on_npu).cpu(), expected)


def test_matmul_of_rows_as_they_are_and_of_more_dimensions():
    x, codes_NK, scale_N = activations(0, 6, 32, BF16), int8(0, 20, 32), scales(0, 20)
    flat = npu.matmul(x.npu(), resident(codes_NK, True).t(), scale_N.npu())
    assert torch.equal(npu.matmul(x.npu(), codes_NK.npu(), scale_N.npu()).cpu(), flat.cpu())
    for shape in ((2, 3, 32), (1, 2, 3, 32)):
        found = npu.matmul(x.view(shape).npu(), codes_NK.npu(), scale_N.npu())
        assert found.shape == (*shape[:-1], 20) and torch.equal(found.view(6, 20).cpu(), flat.cpu())


def test_linear_with_scales_in_bfloat16():
    x_MK, codes_NK, scale_N = activations(0, 4, 32, BF16), int8(0, 20, 32), scales(0, 20).to(BF16)
    found = npu_linear.linear(x_MK.npu(), resident(codes_NK, True), scale_N.npu())
    assert torch.equal(
        found.cpu(), npu_linear.linear(x_MK.npu(), resident(codes_NK, True), scale_N.float().npu()).cpu()
    )


@pytest.mark.parametrize("shape", [(65535, 1), (1, 65535)])
@pytest.mark.parametrize("nz", [False, True])
def test_linear_at_the_documented_limits(shape, nz):
    k, n = shape
    x_MK, codes_NK, scale_N = activations(0, 1, k, BF16), int8(0, n, k), scales(0, n)
    found = npu_linear.linear(x_MK.npu(), resident(codes_NK, nz), scale_N.npu())
    x_codes_MK, x_scale_M = (part.cpu() for part in npu_linear.quantize_rows(x_MK.npu()))
    assert torch.equal(found.cpu(), (sums_of(x_codes_MK, codes_NK) * scale_N * x_scale_M.unsqueeze(1)).to(BF16))
