"""float32, integers and views on the device, against the host's IEEE arithmetic."""

import torch

from ascend_quant import oracle
from ascend_quant.kernels import reciprocals
from npu_smoke import data
from npu_smoke.checks import Setting, check, require
from npu_smoke.compare import difference, note, require_all_equal

COUNT, SMALL = 1_000_000, 20_000


def _count(on: Setting) -> int:
    return SMALL if on.small else COUNT


def _magnitudes() -> torch.Tensor:
    """All BF16 numbers that are not negative: 0, subnormals, normals, Inf, NaN."""
    return torch.arange(32768, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


@check("arithmetic.quotients_by_127", needed=False)
def quotients(on: Setting, numbers: dict) -> None:
    """Is every BF16 magnitude / 127 in float32 the correctly rounded one?"""
    absmax = _magnitudes()[:0x7F80].float()
    divisor = torch.full_like(absmax, 127)
    note(on.put(absmax) / on.put(divisor), absmax / divisor, numbers, "tensor / tensor")
    note(on.put(absmax) / 127, absmax / divisor, numbers, "tensor / number")
    require_all_equal(numbers)


@check("arithmetic.division", needed=False)
def division(on: Setting, numbers: dict) -> None:
    """Is float32 division correctly rounded?"""
    a, b = (data.floats(_count(on), seed) for seed in (1, 2))
    note(on.put(a) / on.put(b), a / b, numbers, "random pairs")
    require_all_equal(numbers)


@check("arithmetic.multiplication", needed=False)
def multiplication(on: Setting, numbers: dict) -> None:
    """Is float32 multiplication correctly rounded?"""
    a, b = (data.floats(_count(on), seed) for seed in (3, 4))
    note(on.put(a) * on.put(b), a * b, numbers, "random pairs")
    require_all_equal(numbers)


@check("arithmetic.addition", needed=False)
def addition(on: Setting, numbers: dict) -> None:
    """Is float32 addition correctly rounded?"""
    a, b = (data.floats(_count(on), seed, exponents=12) for seed in (5, 6))
    note(on.put(a) + on.put(b), a + b, numbers, "random pairs")
    require_all_equal(numbers)


@check("arithmetic.what_codes_rest_on", claim="tables")
def what_codes_rest_on(on: Setting, numbers: dict) -> None:
    """Do products err by less than 2**-22, and does adding 1.5 * 2**23 round half to even?"""
    a, b = (data.floats(_count(on), seed) for seed in (7, 8))
    exact = a.double() * b.double()
    error = float((((on.put(a) * on.put(b)).cpu().double() - exact) / exact).abs().max())
    numbers["largest relative error of a product, log2"] = float(torch.tensor(error).log2())
    require(error < 2.0**-22, f"a float32 product is off by {error:.3g} of itself")
    halves = torch.arange(-255, 256).float() / 2
    near = torch.cat([halves, *(torch.nextafter(halves, torch.full_like(halves, end)) for end in (-1e9, 1e9))])
    bits = (on.put(near) + reciprocals.MAGIC).view(torch.int32) - reciprocals.MAGIC_BITS
    note(bits, near.round().to(torch.int32), numbers, "rounded by an addition")
    require_all_equal(numbers)


@check("arithmetic.round", needed=False)
def rounding(on: Setting, numbers: dict) -> None:
    """Does torch.round round half to even?"""
    halves = torch.arange(-2001, 2002).float() / 2
    note(on.put(halves).round(), halves.round(), numbers, "halves")
    a = data.floats(_count(on), 9, exponents=22)
    note(on.put(a).round(), a.round(), numbers, "random")
    require_all_equal(numbers)


@check("arithmetic.subnormals", needed=False)
def subnormals(on: Setting, numbers: dict) -> None:
    """Does float32 keep subnormal numbers, given and computed?"""
    tiny = 2.0**-126
    given = torch.arange(1, 129).float() * 2.0**-149
    kept = difference(on.put(given) * 1.0, given)["differ"]
    computed = difference(on.put(torch.full((64,), tiny)) * on.put(torch.arange(64) / 64), torch.arange(64) * tiny / 64)
    widened = torch.arange(1, 128, dtype=torch.int16).view(torch.bfloat16)
    numbers |= {"times 1 differ": kept, "computed ones differ": computed["differ"]}
    numbers["bf16 to float32 differ"] = difference(on.put(widened).float(), widened.float())["differ"]
    divided = difference(on.put(torch.full((64,), tiny)) / 3, torch.full((64,), tiny) / 3)
    numbers["quotients differ"] = divided["differ"]
    flushed = [name for name, count in numbers.items() if count]
    require(not flushed, f"subnormal numbers are changed: {', '.join(flushed)}")


@check("arithmetic.int32_products_wrap", needed=False)
def int32_products(on: Setting, numbers: dict) -> None:
    """Do int32 products wrap around?"""
    _products_wrap(torch.int32, on, numbers)


@check("arithmetic.int64_products_wrap", needed=False)
def int64_products(on: Setting, numbers: dict) -> None:
    """Do int64 products wrap around?"""
    _products_wrap(torch.int64, on, numbers)


def _products_wrap(dtype: torch.dtype, on: Setting, numbers: dict) -> None:
    limits = torch.iinfo(dtype)
    a, b = (
        torch.randint(limits.min, limits.max, (_count(on),), generator=data.generator(seed), dtype=torch.int64)
        for seed in (10, 11)
    )
    a, b = a.to(dtype), b.to(dtype)
    note(on.put(a) * on.put(b), a * b, numbers, "products")
    note(on.put(a) + on.put(b), a + b, numbers, "sums")
    require_all_equal(numbers)


@check("arithmetic.int32_to_float32", needed=False)
def int32_to_float32(on: Setting, numbers: dict) -> None:
    """Are int32 numbers above 2**24 rounded half to even on their way to float32?"""
    integers = data.nearby(_count(on), 2**31 - 1).to(torch.int32)
    note(on.put(integers).float(), integers.float(), numbers, "conversions")
    require_all_equal(numbers)


@check("arithmetic.conversions", claim="bytes")
def conversions(on: Setting, numbers: dict) -> None:
    """Are the conversions that our kernels use exact?"""
    codes = torch.arange(-128, 128)
    note(on.put(codes.to(torch.int32)).to(torch.int8), codes.to(torch.int8), numbers, "int32 to int8")
    note(on.put(codes.to(torch.int8)).float(), codes.float(), numbers, "int8 to float32")
    bytes_ = codes.to(torch.int8)
    note((on.put(bytes_) < 0).to(torch.int8), (bytes_ < 0).to(torch.int8), numbers, "int8 < 0 to int8")
    floats = torch.cat([data.floats(_count(on), 12), torch.tensor([0.0, -0.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4e38])])
    note(on.put(floats).to(torch.bfloat16), floats.to(torch.bfloat16), numbers, "float32 to bf16")
    shorts = _magnitudes().view(torch.int16)
    note(on.put(shorts).to(torch.int32), shorts.to(torch.int32), numbers, "int16 to int32")
    require_all_equal(numbers)


@check("arithmetic.views", claim="bytes")
def views(on: Setting, numbers: dict) -> None:
    """Does tensor.view(dtype) on the device give the same bits, also to the operator that reads it next?"""
    made = torch.randint(-(2**62), 2**62, (64, 8), generator=data.generator(13), dtype=torch.int64)
    pairs = [("int64", torch.int32), ("int64", torch.int8), ("int32", torch.int8), ("int8", torch.int32)]
    pairs += [("int32", torch.float32), ("float32", torch.int32), ("bfloat16", torch.int16), ("int16", torch.bfloat16)]
    for start, end in pairs:
        values = made.view(getattr(torch, start))
        expected, found = values.view(end), on.put(values).view(end)
        name = f"{start} as {str(end).removeprefix('torch.')}"
        note(found, expected, numbers, name)
        note(found[1:, ::2].contiguous(), expected[1:, ::2].contiguous(), numbers, f"{name}, gathered")
        if not end.is_floating_point:
            note(found.to(torch.int64) + 1, expected.to(torch.int64) + 1, numbers, f"{name}, plus 1")
    require_all_equal(numbers)


@check("arithmetic.tables", claim="tables")
def tables(on: Setting, numbers: dict) -> None:
    """Do int32 and int64 indices fetch the right elements and rows?"""
    table, matrix = data.floats(32768, 14), data.floats(4096, 15).view(256, 16)
    wanted = torch.randint(0, 32768, (_count(on),), generator=data.generator(16))
    for dtype in (torch.int32, torch.int64):
        index, rows = wanted.to(dtype), (wanted[:999] % 256).to(dtype)
        note(on.put(table)[on.put(index)], table[wanted], numbers, f"table[{dtype}]")
        found = torch.index_select(on.put(table), 0, on.put(index))
        note(found, table[wanted], numbers, f"index_select {dtype}")
        note(on.put(matrix)[on.put(rows)], matrix[rows.long()], numbers, f"rows[{dtype}]")
    require_all_equal(numbers)


@check("arithmetic.scales_and_factors", claim="tables")
def scales_and_factors(on: Setting, numbers: dict) -> None:
    """Is what our kernels look up for every BF16 magnitude the oracle's scale, and is each code right?"""
    absmax = _magnitudes()[:0x7F80]
    scale, factor = reciprocals.scale_and_factor(on.put(absmax))
    columns = torch.tensor([1, 0.5, -1, -0.5, 0.25, 0.75, 1 / 127, 0.99], dtype=torch.float64)
    values_NK = (absmax.double()[:, None] * columns).to(torch.bfloat16)
    codes, scales = oracle.quantize_rows(values_NK, absmax.float())
    note(scale, scales, numbers, "scales")
    note(reciprocals.codes_of(on.put(values_NK), factor), codes, numbers, "codes")
    require_all_equal(numbers)


@check("arithmetic.isfinite", claim="bad tensors")
def isfinite(on: Setting, numbers: dict) -> None:
    """Is torch.isfinite right for every BF16 number?"""
    values = torch.cat([_magnitudes(), -_magnitudes()])
    found = torch.isfinite(on.put(values))
    note(found.to(torch.int8), torch.isfinite(values).to(torch.int8), numbers, "all bf16")
    counted = (~torch.isfinite(on.put(values.view(256, 256)))).sum(1)
    note(counted, (~torch.isfinite(values.view(256, 256))).sum(1), numbers, "counted by row")
    require_all_equal(numbers)


@check("arithmetic.absmax", claim="bytes")
def absmax_of_rows(on: Setting, numbers: dict) -> None:
    """Is the largest BF16 magnitude of a row right, with zeros, subnormals, NaN and Inf too?"""
    values = data.awkward(64, 301, 17)
    values[10, 5], values[11, 300], values[12, 0], values[12, 9] = (
        float("nan"),
        float("-inf"),
        float("inf"),
        float("nan"),
    )
    values[13] = -0.0
    values[14] = -_magnitudes()[1:302]  # subnormals, and a few that are not
    note(on.put(values).abs().amax(-1), values.abs().amax(-1), numbers, "rows")
    require_all_equal(numbers)


@check("arithmetic.copies", claim="bytes")
def copies(on: Setting, numbers: dict) -> None:
    """Do cat, strided copies and transpositions of int8 move every byte right?"""
    codes = torch.randint(-127, 128, (96, 80), generator=data.generator(18), dtype=torch.int8)
    there = on.put(codes)
    note(
        torch.cat([there[3:40], there[50:51], there[60:]]),
        torch.cat([codes[3:40], codes[50:51], codes[60:]]),
        numbers,
        "cat",
    )
    target = torch.zeros(3, 80, 32, dtype=torch.int8)
    moved = on.put(target)
    address = moved.data_ptr()
    moved.copy_(there.view(3, 32, 80).transpose(1, 2))
    note(moved, codes.view(3, 32, 80).transpose(1, 2).contiguous(), numbers, "into panels")
    moved[1, :, 5:9].copy_(there[:4].t())
    target.copy_(codes.view(3, 32, 80).transpose(1, 2))[1, :, 5:9] = codes[:4].t()
    note(moved, target, numbers, "into a part of a panel")
    require(moved.data_ptr() == address, "a copy into a tensor moved its address")
    require_all_equal(numbers)


@check("arithmetic.counters", claim="receipts")
def counters(on: Setting, numbers: dict) -> None:
    """Are int64 counters added up right?"""
    rows, index = data.nearby(512, 2**40), torch.arange(512) % 7
    found = torch.zeros(9, dtype=torch.int64, device=on.device).index_add_(0, on.put(index), on.put(rows))
    note(found, torch.zeros(9, dtype=torch.int64).index_add_(0, index, rows), numbers, "index_add_")
    note(on.put(rows).view(8, 64).sum(1), rows.view(8, 64).sum(1), numbers, "sum")
    products = data.nearby(512, 2**31 - 1).to(torch.int32)
    expected = rows.clone()
    total = on.put(rows)
    expected += products
    total += on.put(products)
    note(total, expected, numbers, "int64 += int32")
    require_all_equal(numbers)
