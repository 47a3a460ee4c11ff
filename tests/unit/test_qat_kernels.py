"""`fake_quantize` of every kernel module equals the definition in exact rationals, and the oracle bit for bit."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naming import line_naming
from qat_cases import engine_weight

from ascend_quant.qat import SCHEMES
from ascend_quant.schemes import get_scheme

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST = 7
SPECIAL = [0.0, -0.0, 1.0, -1.0, 7.0, 3.5, 0.5, 1e-38, -1e-40, 3.3e38, -3.3e38, 2.0**-100, -7.8e-31, 127.0, 63.5]


def bf16(value: float) -> float:
    """Return a float32 number rounded to BF16, halves to even."""
    bits = int(np.float32(value).view(np.uint32))
    rounded = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    return float(np.uint32(rounded).view(np.float32))


def by_definition(values: list[float]) -> list[float]:
    """Return the fake-quantized values of one group, from exact rationals, rounded where the definition rounds."""
    values = [bf16(value) for value in values]
    absmax = max(map(abs, values))
    with np.errstate(all="ignore"):
        scale = bf16(float(np.float32(absmax) / np.float32(LARGEST))) if absmax >= 2.0**-100 else 0.0
    if scale == 0:
        return [0.0] * len(values)
    result = []
    for value in values:
        quotient = Fraction(float(np.float32(value) / np.float32(scale)))
        code = max(-LARGEST, min(LARGEST, round(quotient)))  # round() of a Fraction: halves to even
        result.append(bf16(float(np.float32(float(code * Fraction(scale))))))
    return result


def same_bits(ours, expected):
    kind = {2: torch.int16, 4: torch.int32}[expected.element_size()]
    assert ours.dtype == expected.dtype and ours.shape == expected.shape
    return torch.equal(ours.cpu().view(kind), expected.cpu().view(kind))


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(SCHEMES), st.lists(st.sampled_from(SPECIAL) | st.floats(-1e4, 1e4, width=32), min_size=1), st.data()
)
def test_the_values_equal_the_definition(kernels, name, values, data):
    scheme = get_scheme(name)
    values = (values * scheme.group)[: scheme.group]
    w = torch.tensor([values], dtype=torch.float32, device=kernels.device)
    found = kernels.module.fake_quantize(w, scheme)
    assert found[0].tolist() == by_definition(w[0].tolist())
    assert not any(math.copysign(1, value) < 0 for value in found[0].tolist() if value == 0)  # codes have no -0


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(SCHEMES),
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    groups=st.integers(1, 5),
    spread=st.sampled_from([1.0, 1e-30, 1e30]),
    seed=st.integers(0, 2**31),
)
def test_weights_of_any_shape_equal_the_oracle(kernels, name, dtype, shape, groups, spread, seed):
    scheme = get_scheme(name)
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(*shape, groups * scheme.group, generator=generator) * (spread if dtype != torch.float16 else 1.0)
    w = w.to(dtype)
    before = w.clone()
    found = kernels.module.fake_quantize(w.to(kernels.device), scheme)
    assert same_bits(found, engine_weight(w, name)) and same_bits(w, before)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_bf16_magnitude_equals_the_oracle(kernels, name):
    scheme = get_scheme(name)
    every = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16)  # 255 * 128 of them
    neighbours, far_apart = every.view(255, 128), every.view(128, 255).T.contiguous()
    for w in (neighbours, far_apart):
        assert same_bits(kernels.module.fake_quantize(w.to(kernels.device), scheme), engine_weight(w, name))


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_group_with_nan_or_inf_becomes_non_finite(kernels, name, bad):
    scheme = get_scheme(name)
    w = torch.ones(2, 256, device=kernels.device)
    w[1, 3] = bad
    found = kernels.module.fake_quantize(w, scheme)
    assert not torch.isfinite(found[1, : scheme.group]).any()
    assert torch.isfinite(found[0]).all() and torch.isfinite(found[1, scheme.group :]).all()


@pytest.mark.parametrize("name", SCHEMES)
def test_strides_and_lengths_do_not_matter(kernels, name, monkeypatch):
    scheme, generator = get_scheme(name), torch.Generator().manual_seed(1)
    for dtype in DTYPES:
        turned = torch.randn(3, 256, 5, generator=generator).to(dtype).transpose(1, 2)
        found = kernels.module.fake_quantize(turned.to(kernels.device), scheme)
        assert same_bits(found, engine_weight(turned.contiguous(), name))
    for groups in (1, 33, 257, 4097):
        w = torch.randn(3, groups * scheme.group, generator=generator)
        assert same_bits(kernels.module.fake_quantize(w.to(kernels.device), scheme), engine_weight(w, name))
    assert kernels.module.fake_quantize(torch.ones(0, 128, device=kernels.device), scheme).shape == (0, 128)
    with pytest.raises(ValueError, match=line_naming("100 elements", f"int4 groups of {scheme.group}")):
        kernels.module.fake_quantize(torch.ones(2, 100, device=kernels.device), scheme)
    monkeypatch.setattr("ascend_quant.kernels.fallbacks.ELEMENTS", 100)  # fewer than are taken together
    w = torch.randn(700, 128, generator=generator)
    assert same_bits(kernels.module.fake_quantize(w.to(kernels.device), scheme), engine_weight(w, name))
