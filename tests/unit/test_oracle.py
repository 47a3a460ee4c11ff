"""The oracle against the rule, computed independently with exact rationals and with numpy."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from naming import line_naming

from ascend_quant import oracle
from ascend_quant.schemes import SCHEMES
from ascend_quant.schemes.arithmetic import dequantized_sums, fused_multiply_add

SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    127.0,
    63.5,
    0.5,
    1.5,
    2.5,
    -2.5,
    1e-38,
    -1e-40,
    3.3e38,
    -3.3e38,
    1e-45,
    2.0**-100,
    -7.8e-31,
]


def exact_code(value: float, scale: float) -> int:
    """Round-half-even of the float32 quotient, with exact rationals."""
    if scale == 0:
        return 0
    quotient = Fraction(float(np.float32(value) / np.float32(scale)))
    return max(-127, min(127, round(quotient)))  # Fraction rounds half to even


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(SPECIAL) | st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40))
def test_quantize_rows_follows_the_rule(values):
    row = torch.tensor([values], dtype=torch.float32)
    codes, scale = oracle.quantize_rows(row)
    absmax = np.abs(row.numpy()).max()
    with np.errstate(all="ignore"):
        expected_scale = absmax / np.float32(127) if absmax >= 2**-100 else 0.0
        expected = [exact_code(v, expected_scale) for v in row[0].tolist()]
    assert scale.item() == expected_scale
    assert codes[0].tolist() == expected


def test_ties_round_to_even():
    codes, scale = oracle.quantize_rows(torch.tensor([[127.0, 0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5]]))
    assert scale.item() == 1.0
    assert codes[0].tolist() == [127, 0, 2, 2, 4, 0, -2, -2]


def test_zero_row_has_zero_scale_and_codes():
    codes, scale = oracle.quantize_rows(torch.zeros(2, 5))
    assert scale.tolist() == [0.0, 0.0]
    assert not codes.any()


def test_float32_weights_are_rounded_to_bf16_first():
    w_NK = torch.randn(8, 33)
    codes, scale = oracle.quantize_weight(w_NK)
    rounded_codes, rounded_scale = oracle.quantize_rows(w_NK.to(torch.bfloat16).float())
    assert torch.equal(codes, rounded_codes) and torch.equal(scale, rounded_scale)
    assert not torch.equal(scale, oracle.quantize_rows(w_NK)[1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_value_shows_in_the_scale(bad):
    row = torch.ones(1, 7)
    row[0, 3] = bad
    assert not torch.isfinite(oracle.quantize_rows(row)[1]).any()


def test_a_slice_with_the_whole_rows_absmax_is_a_slice_of_the_codes():
    w_NK = torch.randn(6, 20, dtype=torch.bfloat16)
    codes, scale = oracle.quantize_weight(w_NK)
    part, part_scale = oracle.quantize_weight(w_NK[:, 7:15], w_NK.float().abs().amax(-1))
    assert torch.equal(part, codes[:, 7:15]) and torch.equal(part_scale, scale)


def test_dequantize_is_within_half_a_step():
    w_NK = torch.randn(16, 64, dtype=torch.bfloat16).float()
    codes, scale = oracle.quantize_weight(w_NK)
    assert ((oracle.dequantize(codes, scale) - w_NK).abs() <= scale.unsqueeze(-1) * 0.5001).all()


def test_matmul_equals_the_product_of_the_dequantized_in_float64():
    x_MK, w_NK, bias_N = torch.randn(5, 40), torch.randn(7, 40), torch.randn(7)
    codes, scale = oracle.quantize_weight(w_NK)
    x_codes, x_scale = oracle.quantize_rows(x_MK)
    left = x_codes.numpy().astype(np.float64) * x_scale.numpy().astype(np.float64)[:, None]
    right = codes.numpy().astype(np.float64) * scale.numpy().astype(np.float64)[:, None]
    expected = left @ right.T + bias_N.numpy()
    np.testing.assert_allclose(oracle.matmul(x_MK, codes, scale, bias_N).numpy(), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=300)
@given(*[st.floats(-8, 8, width=32)] * 2, st.floats(-8, 8, width=32) | st.sampled_from([2.0**-80, -(2.0**-80)]))
@example(1 + 2.0**-12, 1 + 2.0**-12, 2.0**-80)  # half a float32's step and a trace: float64 alone loses the trace
@example(1 + 2.0**-12, -1 - 2.0**-12, -(2.0**-80))
@example(1 + 2.0**-12, 1 + 3 * 2.0**-12, -(2.0**-80))
def test_a_fused_multiply_add_rounds_once(x, y, z):
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    found = fused_multiply_add(*torch.tensor([[x], [y], [z]])).item()
    size = nearest_float32(abs(exact)) if exact else 0.0
    assert found == math.copysign(size, exact)


def test_both_scales_are_multiplied_in_the_order_of_vllms_cutlass_kernels():
    sums, x_scale, scale = torch.tensor([[3.0, 5.0]]), torch.tensor([1 + 2.0**-20]), torch.tensor([1 / 3, 0.1])
    first = np.float32(3) * scale.numpy()[0], np.float32(5) * scale.numpy()[1]
    expected = [np.float32(x_scale.numpy()[0]) * value for value in first]
    assert dequantized_sums(sums, x_scale, scale)[0].tolist() == [float(value) for value in expected]


def nearest_float32(value: Fraction) -> float:
    """The float32 next to a positive rational, halves to even, denormals included."""
    exponent = max(value.numerator.bit_length() - value.denominator.bit_length() - 24, -149)
    while exponent > -149 and value / Fraction(2) ** exponent < 2**23:
        exponent -= 1
    while value / Fraction(2) ** exponent >= 2**24:
        exponent += 1
    return math.ldexp(round(value / Fraction(2) ** exponent), exponent)  # round() of a Fraction: halves to even


@pytest.mark.parametrize("largest", [127, 448])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_scales_are_correctly_rounded_quotients(largest, device):
    """Of every BF16 magnitude. By a Python number, torch on CUDA would multiply with its rounded reciprocal."""
    absmax = torch.arange(1, 0x7F80, dtype=torch.int16).view(torch.bfloat16)
    expected = [nearest_float32(Fraction(value) / largest) if value >= 2**-100 else 0.0 for value in absmax.tolist()]
    assert oracle.scale_of(absmax.to(device), largest).tolist() == expected


E4M3FN = [  # the values of the 256 codes, by the definition: 4 bits of exponent (bias 7), 3 of mantissa, no infinity
    (-1) ** (code >> 7)
    * (Fraction(8 + code % 8, 8) * Fraction(2) ** (code // 8 % 16 - 7) if code // 8 % 16 else Fraction(code % 8, 2**9))
    for code in range(256)
]
NAN = (0x7F, 0xFF)


def fp8_code(value: float, scale: float) -> int:
    """The code next to the float32 quotient, halves to the even code, at most 448; by trying them all."""
    if scale == 0:
        return 0
    with np.errstate(all="ignore"):
        quotient = float(np.float32(value) / np.float32(scale))
    negative = math.copysign(1, quotient) < 0
    bounded = min(Fraction(448), abs(Fraction(quotient)))
    magnitude = min(range(0x7F), key=lambda code: (abs(E4M3FN[code] - bounded), code % 2))
    return magnitude + 128 * negative


def fp8_bits(codes):
    """Codes as numbers from 0 to 255."""
    assert codes.dtype == torch.float8_e4m3fn
    return codes.view(torch.uint8).tolist()


def test_the_table_of_fp8_is_torchs():
    codes = torch.arange(256, dtype=torch.uint8)
    numbers = codes.view(torch.float8_e4m3fn).float().tolist()
    assert [i for i, number in enumerate(numbers) if math.isnan(number)] == list(NAN)
    assert all(Fraction(number) == E4M3FN[i] for i, number in enumerate(numbers) if i not in NAN)
    assert max(value for i, value in enumerate(E4M3FN) if i not in NAN) == oracle.FP8_MAX == 448


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(SPECIAL) | st.floats(-1e4, 1e4, width=32), min_size=1, max_size=30))
def test_fp8_rows_follow_the_rule(values):
    row = torch.tensor([values]).to(torch.bfloat16)
    codes, scale = oracle.quantize_fp8_rows(torch.tensor([values]))
    absmax = row.float().abs().max().item()
    assert scale.tolist() == [nearest_float32(Fraction(absmax) / 448) if absmax >= 2**-100 else 0.0]
    assert fp8_bits(codes) == [[fp8_code(value, scale.item()) for value in row[0].tolist()]]


def test_fp8_halves_go_to_the_even_code_and_small_values_to_denormals():
    middles = [(E4M3FN[code] + E4M3FN[code + 1]) / 2 for code in range(0x7E)]
    small = [value for value in middles if Fraction(float(torch.tensor(float(value)).bfloat16())) == value]
    assert len(small) == len(middles)  # all are BF16 numbers, and with 448 among them the scale is 1
    row = torch.tensor([[448.0, *map(float, middles), *(-float(value) for value in middles)]])
    codes, scale = oracle.quantize_fp8_rows(row)
    assert scale.tolist() == [1.0]
    even = [code + code % 2 for code in range(0x7E)]
    assert fp8_bits(codes) == [[0x7E, *even, *(code + 128 for code in even)]]


def test_fp8_quotients_above_448_saturate():
    whole = torch.tensor([[1.0, -1.0, 0.5]])
    codes, _ = oracle.quantize_fp8_rows(whole, torch.tensor([0.25]))  # a smaller largest, as if it were cut off
    assert fp8_bits(codes) == [[0x7E, 0xFE, 0x7E]]


@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (129, 127), (300, 200), (5, 400)])
def test_fp8_blocks_and_tensors_are_the_rule_on_their_own_elements(shape):
    generator = torch.Generator().manual_seed(0)
    w_NK = torch.randn(shape, generator=generator) * 10 ** torch.randn(shape[0], 1, generator=generator)
    codes, scale = oracle.quantize_fp8_blocks(w_NK)
    assert scale.shape == (math.ceil(shape[0] / 128), math.ceil(shape[1] / 128))
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            rows, columns = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
            block = w_NK[rows, columns].flatten()
            expected, expected_scale = oracle.quantize_fp8_rows(block[None])
            assert torch.equal(scale[i, j], expected_scale[0])
            assert fp8_bits(codes[rows, columns].flatten()) == fp8_bits(expected[0])
    codes, scale = oracle.quantize_fp8_tensor(w_NK)
    expected, expected_scale = oracle.quantize_fp8_rows(w_NK.flatten()[None])
    assert scale.shape == () and torch.equal(scale, expected_scale[0])
    assert fp8_bits(codes.flatten()) == fp8_bits(expected[0])


def test_fp8_zeros_and_what_is_not_finite():
    zeros = torch.tensor([[0.0, -0.0]])
    for quantize in (oracle.quantize_fp8_rows, oracle.quantize_fp8_tensor, oracle.quantize_fp8_blocks):
        codes, scale = quantize(zeros)
        assert not scale.any() and fp8_bits(codes) == [[0, 0]]
        for bad in (math.nan, math.inf, -math.inf):
            assert not torch.isfinite(quantize(torch.tensor([[1.0, bad]]))[1]).any()


DIGEST_DTYPES = [torch.int8, torch.bfloat16, torch.float32, torch.int64]


PRIME = 2**61 - 1


def python_mixed(number):
    number = (number ^ number >> 16) * 0x7FEB352D % 2**32
    number = (number ^ number >> 15) * 0x846CA68B % 2**32
    return number ^ number >> 16


def python_digest(rows, first_row=0, first_byte=0):
    """The definition in Python's integers, for rows of signed bytes."""

    def byte_weight(j):
        span, place = divmod(j // 2, 128)
        weight = python_mixed(place + 0x3C6EF372) * pow(0x2C9277B5, span, 2**32) % 2**32
        return (weight - 2**32 * (weight >= 2**31)) * 256 ** (j % 2)

    def row_weight(row):
        low = python_mixed((row + 0x9E3779B1) % 2**32)
        return low + 2**32 * (python_mixed((low + 0x85EBCA77) % 2**32) % 2**29)

    return (
        sum(
            value * byte_weight(first_byte + j) * row_weight(first_row + r)
            for r, row in enumerate(rows)
            for j, value in enumerate(row)
        )
        % PRIME
    )


def python_rows(tensor):
    """A tensor's bytes as rows of signed integers: a vector is a column."""
    columns = tensor.shape[-1] if tensor.dim() > 1 else 1
    raw = tensor.contiguous().flatten().view(torch.int8).tolist()
    per_row = columns * tensor.element_size()
    return [raw[i : i + per_row] for i in range(0, len(raw), per_row)]


def any_bits(shape, dtype, seed):
    size = math.prod(shape) * dtype.itemsize
    bits = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return bits.view(dtype).view(shape)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 7), max_size=3),
    st.sampled_from(DIGEST_DTYPES),
    st.sampled_from([0, 3, 2**31, 2**40 + 1]),
    st.sampled_from([0, 5, 2**33]),
    st.integers(0, 2**31),
)
def test_digest_is_python_integer_arithmetic(shape, dtype, first_row, first_column, seed):
    values = any_bits(shape, dtype, seed)
    expected = python_digest(python_rows(values), first_row, first_column * dtype.itemsize)
    assert oracle.digest(values, first_row, first_column) == expected


@pytest.mark.parametrize("dtype", DIGEST_DTYPES)
def test_the_digest_does_not_depend_on_strides(dtype):
    for values in (any_bits((6, 5), dtype, 1).T, any_bits((1, 5), dtype, 2).T, any_bits((9, 4), dtype, 3)[::2, 1:3]):
        assert oracle.digest(values) == oracle.digest(values.clone(memory_format=torch.contiguous_format))


def test_the_digest_of_nothing_is_0():
    assert oracle.digest(torch.empty(0, 5)) == oracle.digest(torch.empty(0)) == oracle.add_digests() == 0


@pytest.mark.parametrize("dtype", DIGEST_DTYPES)
def test_a_digest_sees_every_changed_bit(dtype):
    values = any_bits((5, 7), dtype, 1)
    digest = oracle.digest(values)
    raw = values.flatten().view(torch.uint8)
    for i in range(raw.numel()):
        for bit in range(8):
            raw[i] ^= 1 << bit
            assert oracle.digest(values) != digest
            raw[i] ^= 1 << bit
    assert oracle.digest(values) == digest


def test_a_digest_sees_elements_that_change_places():
    values = torch.arange(30, dtype=torch.int32).view(5, 6)
    others = [values.flip(0), values.flip(1), values.roll(1, 0), values.roll(1, 1), values.view(6, 5), values.view(-1)]
    assert len({oracle.digest(other) for other in (values, *others)}) == 7


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 9), st.integers(2, 9), st.sampled_from(DIGEST_DTYPES[:3]), st.data())
def test_digests_of_parts_add_up_in_any_order(rows, columns, dtype, data):
    whole = any_bits((rows, columns), dtype, 7)
    row, column = data.draw(st.integers(1, rows - 1)), data.draw(st.integers(1, columns - 1))
    parts = [
        oracle.digest(whole[:row, :column]),
        oracle.digest(whole[:row, column:], 0, column),
        oracle.digest(whole[row:, :column], row),
        oracle.digest(whole[row:, column:], row, column),
    ]
    assert oracle.add_digests(*data.draw(st.permutations(parts))) == oracle.digest(whole)


def test_added_digests_are_weighted():
    assert oracle.add_digests(PRIME - 1, 5) == 4
    assert oracle.add_digests(PRIME - 1, 5, weights=[2, 3 * PRIME + 7]) == 33


def test_no_two_columns_and_no_row_count_alike_or_not_at_all():
    """Of the longest rows that kernels take; small multiples of neighbours do not cancel either."""
    columns = oracle.column_weights(0, 1 << 17)
    assert len(columns.unique()) == 1 << 17 and columns.abs().min() > 0
    # so that the largest bytes add up exactly in 64 bits
    assert int(columns.abs().sum()) * 0x8080 < 2**63
    for apart in (1, 2, 128, 1024):
        for pattern in ((1, -2, 1), (1, -1, -1, 1), (1, 1, 1), (1, -3, 3, -1), (2, -1)):
            end = len(columns) - apart * len(pattern)
            assert sum(times * columns[i * apart :][:end] for i, times in enumerate(pattern)).abs().min() > 0
    rows = oracle.weights_of_rows(torch.arange(1 << 20))
    assert len(rows.unique()) == 1 << 20 and rows.min() > 0 and rows.max() < PRIME


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from([torch.bfloat16, torch.float16, torch.float32]), st.booleans())
def test_smoothed_is_two_float32_products(seed, dtype, vector):
    generator = torch.Generator().manual_seed(seed)
    shape = (7,) if vector else (5, 7)
    w, out, into = (torch.randn(size, generator=generator) for size in (shape, shape[:1], shape[-1:]))
    w, before = w.to(dtype), w.to(dtype).clone()
    rounded = w.to(torch.bfloat16).float().numpy()
    first, by_row = rounded * into.numpy(), out.numpy() if vector else out.numpy()[:, None]
    for factors, expected in (((into, out), first * by_row), ((into, None), first), ((None, None), rounded)):
        found = oracle.smoothed(w, *factors)
        assert found.dtype == torch.float32 and np.array_equal(found.numpy(), expected)
    again = torch.from_numpy(torch.from_numpy(first).bfloat16().float().numpy() * by_row).bfloat16().float()
    assert torch.equal(oracle.smoothed(w, into, out, rounded=True), again)
    assert torch.equal(w, before)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**6))
def test_given_scales_round_half_to_even_and_lose_what_they_cannot_hold(seed):
    generator = torch.Generator().manual_seed(seed)
    halves = torch.randint(-300, 300, (4, 9), generator=generator) / 2
    scale = torch.tensor([0.5, 2.0**-30, 0.03, 0.0])
    x_NK = torch.where(scale[:, None] > 0, halves * scale[:, None], halves)
    codes, lost = oracle.quantize_given(x_NK, scale)
    for row in range(4):
        for column in range(9):
            x = Fraction(x_NK[row, column].item())
            if scale[row] == 0:
                assert codes[row, column] == 0 and bool(lost[row, column]) == (x != 0)
                continue
            quotient = np.float32(float(x / Fraction(scale[row].item())))  # rounded twice, which does no harm here
            rounded = round(Fraction(float(quotient)))  # Python's: half to even
            assert codes[row, column] == min(max(rounded, -128), 127)
            assert bool(lost[row, column]) == (not -128 <= rounded <= 127)


def bf16(value: Fraction) -> float:
    """The BF16 number next to a fraction, halves to the even one; by way of float32, whose rounding must not matter."""
    near = nearest_float32(value)
    bits = int(np.float32(near).view(np.uint32))
    low, kept = bits & 0xFFFF, bits >> 16
    exact = Fraction(near) == value
    up = low > 0x8000 or (low == 0x8000 and ((exact and kept & 1) or (not exact and value > Fraction(near))))
    return float(np.uint32((kept + up) << 16).view(np.float32))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(SPECIAL) | st.floats(-1e4, 1e4, width=32), min_size=8, max_size=8))
def test_int4_groups_follow_the_rule(values):
    codes, scale = oracle.quantize_groups(torch.tensor([values]), 4)
    row = torch.tensor([values]).to(torch.bfloat16)[0].tolist()
    assert scale.shape == (1, 2) and scale.dtype == torch.bfloat16
    for g, group in enumerate((row[:4], row[4:])):
        absmax = max(map(abs, group))
        # torch divides in float32 and rounds that to BF16: so does the definition
        expected = bf16(Fraction(nearest_float32(Fraction(absmax) / 7))) if absmax >= 2**-100 else 0.0
        assert scale[0, g].item() == expected
        quotients = [Fraction(nearest_float32(Fraction(v) / Fraction(expected))) if expected else 0 for v in group]
        assert codes[0, 4 * g : 4 * g + 4].tolist() == [round(quotient) for quotient in quotients]


def test_int4_codes_pack_as_compressed_tensors_packs_them():
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    codes = torch.randint(-8, 8, (3, 5, 64), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    packed = oracle.pack_int4(codes)
    assert torch.equal(packed, helpers.pack_to_int32(codes, 4))
    assert torch.equal(oracle.unpack_int4(packed), codes)


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES.values() if scheme.quantized], ids=lambda s: s.name)
def test_every_scheme_undoes_what_it_does_within_half_a_step(scheme):
    w_ENK = torch.randn(2, 200, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    w_ENK[0, 3] = 0
    w_ENK[1, :128, :128] = 0
    codes, scale = oracle.quantize(w_ENK, scheme)
    back = oracle.dequantize(codes, scale)
    assert back.shape == w_ENK.shape and torch.isfinite(back).all() and torch.isfinite(scale.float()).all()
    assert not back[0, 3].any() and not back[1, :128, :128].any()
    error = (back - w_ENK.float()).abs()
    step = {"int8": 1.0, "fp8": 32.0, "int4": 1.0}[scheme.codes]  # the largest distance of neighbouring codes
    one = oracle.dequantize(torch.ones_like(codes.float()).to(codes.dtype), scale)
    assert (error <= one * step * 0.5 * (1 + 2**-7)).all()
    assert error.max() > 0
    for each in range(2):  # stacks are matrices one by one
        alone = oracle.quantize(w_ENK[each], scheme)
        assert all(torch.equal(a.float(), b[each].float()) for a, b in zip(alone, (codes, scale), strict=True))


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES.values() if scheme.quantized], ids=lambda s: s.name)
def test_products_are_those_of_what_the_codes_stand_for(scheme):
    generator = torch.Generator().manual_seed(0)
    w_NK, x_MK = torch.randn(200, 256, generator=generator), torch.randn(7, 256, generator=generator)
    bias_N = torch.randn(200, generator=generator)
    codes, scale = oracle.quantize(w_NK, scheme)
    out = oracle.product(x_MK, codes, scale, scheme, bias_N)
    w = oracle.dequantize(codes, scale).double()
    exact = x_MK.double() @ w.T + bias_N
    bound = {"int8": 0.5 / 127, "fp8": 2**-4, "int4": 2**-8}[scheme.codes]  # of each activation's or weight's size
    size = x_MK.abs().amax(1, keepdim=True) if scheme.codes == "int8" else x_MK.abs()
    assert ((out - exact).abs() <= bound * (size.double().expand_as(x_MK) @ w.abs().T) + 1e-5).all()
    assert (out - exact).abs().max() > 1e-5


def test_what_cannot_be_quantized_says_so():
    with pytest.raises(ValueError, match=line_naming("100 elements", "int4 groups of 32")):
        oracle.quantize(torch.zeros(2, 100), SCHEMES["int4_g32"])
    with pytest.raises(ValueError, match=line_naming("bf16", "weights")):
        oracle.quantize(torch.zeros(2, 100), SCHEMES["bf16"])
