"""The kernels that compute activations and their codes, on a GPU or in Triton's interpreter, against torch."""

import pytest
import torch
import torch.nn.functional as F
from kernel_modules import triton_module

from ascend_quant import oracle

pytestmark = pytest.mark.gpu(interpreted=True)
NAME = "ascend_quant.kernels.cuda.serve.triton_fused_tokens"


@pytest.fixture(scope="module")
def fused():
    """The module of the kernels, and where its tensors are."""
    with triton_module(NAME) as found:
        yield found


def to_bf16(values, device):
    """Rounded; but Triton's interpreter cuts off."""
    if device == "cpu":
        values = (values.contiguous().view(torch.int32) & -0x10000).view(torch.float32)
    return values.to(torch.bfloat16)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(found, values) -> None:
    """The oracle's of `values`, but for a last bit of a few of them: sums have no order, and exp is the device's."""
    codes, scale = oracle.quantize_rows(values)
    off = (found[0].cpu().int() - codes.int()).abs()
    assert off.max() <= 1 and (off > 0).float().mean() < 0.02
    assert ((found[1][:, 0].cpu() - scale).abs() <= scale * 2**-7).all()


def normed(x, weight, residual, device):
    total = x.float() if residual is None else x.float() + residual.float()
    return to_bf16(total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float(), device), total


@pytest.mark.parametrize("columns", [1, 64, 300, 2048, 5120])
@pytest.mark.parametrize("adds", [True, False])
def test_norms(fused, columns, adds):
    module, device = fused
    x, residual, weight = random(3, columns), random(3, columns, seed=1) if adds else None, random(columns, seed=2)
    there = [None if tensor is None else tensor.to(device) for tensor in (x, weight, residual)]
    found = module.rms_norm_quantize(there[0], there[1], 1e-6, there[2])
    values, total = normed(x, weight, residual, device)
    close(found, values)
    assert torch.equal(found[2].cpu(), to_bf16(total, device))


@pytest.mark.parametrize("adds", [True, False])
def test_norms_whose_every_step_is_exact(fused, adds):
    """Elements of one magnitude, a power of two: the norm is the weight, with signs."""
    module, device = fused
    signs = torch.randint(0, 2, (6, 512), generator=torch.Generator().manual_seed(3)) * 2.0 - 1
    x = (signs * 2.0 ** torch.arange(-4, 8, 2)[:, None]).bfloat16().to(device)
    weight = random(512, seed=4).to(device)
    residual = x if adds else None
    codes, scale, total = module.rms_norm_quantize(x, weight, 1e-30, residual)
    expected_codes, expected_scale = oracle.quantize_rows(signs * weight.cpu().float())
    assert torch.equal(codes.cpu(), expected_codes) and torch.equal(scale[:, 0].cpu(), expected_scale)
    assert torch.equal(total, x * 2 if adds else x)


@pytest.mark.parametrize("columns", [1, 3, 100, 4864, 6144])
def test_silu_times_up(fused, columns):
    module, device = fused
    x = random(3, 2 * columns, seed=columns) * 3
    gate, up = x.float().chunk(2, -1)
    close(module.silu_mul_quantize(x.to(device)), to_bf16(F.silu(gate) * up, device))


def test_silu_of_large_numbers_is_exact(fused):
    """It is the gate, or 0."""
    module, device = fused
    gate = torch.tensor([[64.0, -64.0, 100.0, -1e30, 96.0, -1e4, 1e30, 127.0]]).bfloat16().repeat(2, 40)
    up = random(2, 320, seed=5)
    gate[0].clamp_(max=128)
    codes, scale = module.silu_mul_quantize(torch.cat([gate, up], 1).to(device))
    expected_codes, expected_scale = oracle.quantize_rows(to_bf16(gate.float().clamp(min=0) * up.float(), device))
    assert torch.equal(codes.cpu(), expected_codes) and torch.equal(scale[:, 0].cpu(), expected_scale)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_spoils_its_row_alone(fused, bad):
    module, device = fused
    x, weight = random(3, 128), random(64, seed=1).to(device)
    x[1, 5] = bad
    x = x.to(device)
    for found in (
        module.silu_mul_quantize(x),
        module.rms_norm_quantize(x[:, :64], weight, 1e-6),
        module.rms_norm_quantize(x[:, :64], weight, 1e-6, random(3, 64, seed=2).to(device)),
    ):
        assert torch.isfinite(found[1][:, 0]).tolist() == [True, False, True]


def test_no_tokens(fused):
    module, device = fused
    nothing, weight = torch.empty(0, 64, dtype=torch.bfloat16, device=device), random(64).to(device)
    assert [tuple(found.shape) for found in module.rms_norm_quantize(nothing, weight, 1e-6, nothing)] == [
        (0, 64),
        (0, 1),
        (0, 64),
    ]
    assert module.silu_mul_quantize(nothing)[0].shape == (0, 32)
