"""The exact ops' kernels, on a GPU or in Triton's interpreter, against their definitions in torch."""

import pytest
import torch
from kernel_modules import triton_module

from ascend_quant import oracle
from ascend_quant.kernels import exact_ops

pytestmark = pytest.mark.gpu(interpreted=True)
EPS = 1e-6


@pytest.fixture(scope="module")
def exact():
    """The module of the kernels, and where its tensors are."""
    with triton_module("ascend_quant.kernels.cuda.serve.triton_exact") as found:
        yield found


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def near(found: torch.Tensor, wanted: torch.Tensor, steps: int) -> None:
    """Apart by at most so many roundings to BF16, which Triton's interpreter cuts off."""
    found, wanted = found.cpu().float(), wanted.float()
    assert ((found - wanted).abs() <= wanted.abs() * steps * 2**-7 + 1e-6).all()


@pytest.mark.parametrize("columns", [64, 128, 300, 3584])
def test_norms(exact, columns):
    module, device = exact
    x, residual, weight = random(5, columns), random(5, columns, seed=1), random(columns, seed=2)
    there = [tensor.to(device) for tensor in (x, residual, weight)]
    near(module.rms_norm(there[0], there[2], EPS), exact_ops.rms_norm(x, weight, EPS), 2)
    found, total = module.add_rms_norm(*there, EPS)
    near(total, x + residual, 1)
    near(found, exact_ops.rms_norm(total.cpu(), weight, EPS), 2)


def test_a_sum_is_rounded_before_it_is_normed(exact):
    """A residual below half a last bit of x is lost, whatever the weight: the norm is that of x alone."""
    module, device = exact
    x, weight = (1 + random(3, 256).abs()).to(device), random(256, seed=2).to(device)
    found, total = module.add_rms_norm(x, torch.full_like(x, 2**-10), weight, EPS)
    assert torch.equal(total, x) and torch.equal(found, module.rms_norm(x, weight, EPS))


def test_codes_are_those_of_the_values(exact):
    """An engine makes codes in the norm's own kernel, a trainer from the norm's values."""
    from ascend_quant.kernels.cuda.serve import triton_fused_tokens as fused

    module, device = exact
    rows = 4096 if device == "cuda" else 16
    for columns in (128, 1536, 2048, 3584, 4096, 5120, 8192):
        x, residual, weight = (random(*shape).to(device) for shape in ((rows, columns), (rows, columns), (columns,)))
        gate_up = random(rows, 2 * columns, seed=3).to(device)
        values, total = module.add_rms_norm(x, residual, weight, EPS)
        for made, value in (
            (fused.rms_norm_quantize(x, weight, EPS, residual, rounded=True), values),
            (fused.rms_norm_quantize(total, weight, EPS, rounded=True), module.rms_norm(total, weight, EPS)),
            (fused.silu_mul_quantize(gate_up, rounded=True), module.silu_mul(gate_up)),
        ):
            codes, scale = oracle.quantize_rows(value.cpu())
            assert torch.equal(made[0].cpu(), codes) and torch.equal(made[1][:, 0].cpu(), scale), columns
        assert torch.equal(fused.rms_norm_quantize(x, weight, EPS, residual, rounded=True)[2], total)


def test_silu_times_up(exact):
    module, device = exact
    x = random(2, 3, 2 * 300, seed=4) * 3
    there = x.to(device)
    found = module.silu_mul(there)
    near(found, exact_ops.silu_mul(x), 3)
    assert torch.equal(module.silu_mul_apart(*(part.contiguous() for part in there.chunk(2, -1))), found)


def to_bf16(values: torch.Tensor, device: str) -> torch.Tensor:
    """Rounded; but Triton's interpreter cuts off."""
    if device == "cpu":
        values = (values.contiguous().view(torch.int32) & -0x10000).view(torch.float32)
    return values.to(torch.bfloat16).float()


@pytest.mark.parametrize(("heads", "size"), [((7, 1), 128), ((9, 2), 64), ((16, 16), 96)])
def test_rotation(exact, heads, size):
    module, device = exact
    widths = [heads[0] * size, heads[1] * size, heads[1] * size]
    query, key, _ = random(5, sum(widths)).to(device).split(widths, dim=1)
    positions, cos_sin = torch.tensor([3, 0, 8, 8, 2]), random(9, size, seed=5)
    found = module.rotate(positions.to(device), query, key, cos_sin.to(device))
    cos, sin = (half.float().unsqueeze(1) for half in cos_sin[positions].chunk(2, -1))
    for one, given in zip(found, (query, key), strict=True):
        left, right = given.cpu().float().view(5, -1, size).chunk(2, -1)
        first = to_bf16(left * cos, device) - to_bf16(right * sin, device)
        second = to_bf16(right * cos, device) + to_bf16(left * sin, device)
        wanted = to_bf16(torch.cat((first, second), -1), device).view(given.shape)
        assert one.is_contiguous() and torch.equal(one.cpu().float(), wanted)


def test_the_definition_rotates_as_transformers_does():
    from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

    query, key, cos_sin = random(5, 4 * 64), random(5, 2 * 64, seed=1), random(5, 64, seed=2)
    cos, sin = (half.repeat(1, 2).unsqueeze(0) for half in cos_sin.chunk(2, -1))
    wanted = apply_rotary_pos_emb(*(x.view(1, 5, -1, 64).transpose(1, 2) for x in (query, key)), cos, sin)
    for found, one in zip(exact_ops.rotate(torch.arange(5), query, key, cos_sin), wanted, strict=True):
        assert torch.equal(found.view(1, 5, -1, 64).transpose(1, 2), one)


def test_no_tokens(exact):
    module, device = exact
    nothing = torch.empty(0, 128, dtype=torch.bfloat16, device=device)
    weight, positions = random(128).to(device), torch.empty(0, dtype=torch.int64, device=device)
    assert module.add_rms_norm(nothing, nothing, weight, EPS)[1].shape == (0, 128)
    assert module.silu_mul(nothing).shape == (0, 64)
    assert module.rotate(positions, nothing, nothing, random(4, 64).to(device))[0].shape == (0, 128)
