"""Probes of what ascend_quant.kernels.npu writes and counts, and of torch_npu's operators, beside the definition.

A product of codes is an exact integer sum; its float32 scales may be applied in either order, which is observed.
"""

from collections.abc import Callable

import torch

from ascend_quant import oracle
from ascend_quant.kernels import npu, reciprocals
from ascend_quant.kernels.npu.refit import codes as npu_codes
from ascend_quant.kernels.npu.refit.formats import ND
from ascend_quant.kernels.npu.serve import experts as npu_experts
from ascend_quant.kernels.writes import Int8Write, Job
from ascend_quant.schemes import SCHEMES
from ascend_quant.smoke.npu import data
from ascend_quant.smoke.operators import ERROR, written
from ascend_quant.smoke.probes import On, Seen, probe

UNALIGNED = ((72, 40), (33, 16), (2, 40, 24))  # where FRACTAL_NZ is padded and panels are shared
CODES_APART, SCALES_APART = 0.01, 2.0**-22  # of activations: the operator multiplies where the definition divides
WORST = 1  # unit in the last place of the output: float32 products in another order, rounded once more
TOKENS = (1, 16, 256)


@probe(
    "operators.rounding",
    "codes and scales of every BF16 magnitude are the definition's, ties to even",
    ("npu",),
    limit_s=30,
)
def rounding(on: On) -> Seen:
    """Try every magnitude by the way that refits take here, fused or plain; and what both rest on."""
    way = npu_codes.way_of(on.device)
    seen = Seen({"magnitudes by": way.absmax.__name__, "codes by": way.codes.__name__})
    halves = torch.arange(-255, 256).float() / 2
    near = torch.cat([halves, *(torch.nextafter(halves, torch.full_like(halves, end)) for end in (-1e9, 1e9))])
    bits = (on.put(near) + reciprocals.MAGIC).view(torch.int32) - reciprocals.MAGIC_BITS
    seen.same("rounded by an addition", bits, near.round().to(torch.int32))
    a, b = (torch.randn(100_000, generator=data.generator(seed)) for seed in (1, 2))
    seen.values["float32 quotients of 100,000 that are not IEEE's"] = int(
        ((on.put(a) / on.put(b)).cpu() != a / b).sum()
    )
    absmax = torch.arange(0x7F80, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    columns = torch.tensor([127, 63.5, -127, -63.5, 0.5, -2.5, 31.75, 0.99], dtype=torch.float64) / 127  # ties too
    values_NK = (absmax.double()[:, None] * columns).to(torch.bfloat16)
    codes, scales = oracle.quantize_rows(values_NK, absmax.float())
    there = on.put(values_NK)
    found, factor = reciprocals.scale_and_factor(on.put(absmax))
    seen.same("scales", found, scales)
    seen.same("magnitudes", way.absmax(there), values_NK.abs().amax(1))
    seen.same("codes", way.codes(there, factor), codes)
    return seen


@probe(
    "operators.codes",
    "a refit writes the definition's bytes, plain and in FRACTAL_NZ, at the same address",
    ("npu",),
    limit_s=120,
)
def codes(on: On) -> Seen:
    """Dense weights and stacks of experts, in three shards; codes read by rows, and by torch_npu's own cast."""
    import torch_npu

    seen, cast = Seen(), data.operator("npu_format_cast")
    large = ((96, 64), (3, 64, 80)) if on.small else (data.SEVEN_B[0], data.SEVEN_B[3], (8, *data.EXPERTS[0][1:]))
    for shape in (*large, *UNALIGNED):
        w_NK = data.awkward(*shape, seed=sum(shape))
        for nz in (False, True):
            storage, name = data.storage(shape, nz, on), f"{list(shape)} {'NZ' if nz else 'ND'}"
            before = storage.codes.data_ptr(), torch_npu.get_npu_format(storage.codes)
            problems = written(storage, SCHEMES["int8"], w_NK, on.device)
            seen.problems += [f"{name}: {problem}" for problem in problems]
            plain_KN = cast(storage.codes, ND) if nz else storage.codes
            wanted_NK, _ = oracle.quantize_weight(w_NK)
            seen.same(f"{name}, as an operator reads it", plain_KN.transpose(-1, -2), wanted_NK)
            after = storage.codes.data_ptr(), torch_npu.get_npu_format(storage.codes)
            seen.holds(after == before, f"{name}: address and format were {before}, are {after}")
    return seen


@probe("operators.not_finite", "a NaN or Inf is counted by the tensor that it came in", ("npu",), limit_s=30)
def not_finite(on: On) -> Seen:
    n, k = (96, 64) if on.small else data.SEVEN_B[0]
    sources = [data.weights(n, k, seed=23 + number) for number in range(3)]
    sources[0][3, 5], sources[2][n - 1, :7], sources[2][0, k - 1] = float("nan"), float("-inf"), float("inf")
    counters, scales, jobs = npu.Counters(on.device), [], []
    for slot, source in enumerate(sources):
        there, target, scale = on.put(source), on.put(torch.zeros(n, k, dtype=torch.int8)), on.put(torch.zeros(n))
        jobs.append(Job.of(Int8Write.of(there, target, scale=scale), there, slot))
        scales.append(scale)
    counters.new_slots(len(jobs))
    npu.write(jobs, counters)
    found, seen = counters.read()[2], Seen()
    bad = [(~torch.isfinite(scale.cpu())).nonzero().flatten().tolist() for scale in scales]
    seen.values |= {"rows counted, by tensor": found, "rows with a scale that is not finite": bad}
    seen.holds(found == {0: 1, 2: 2}, f"counted {found}: tensor 0 has one row that is not finite, tensor 2 has two")
    seen.holds(bad == [[3], [], [0, n - 1]], f"rows with a scale that is not finite: {bad}")
    return seen


@probe(
    "operators.activations", "npu_dynamic_quant rounds half to even, but for a product's last bit", ("npu",), limit_s=30
)
def activations(on: On) -> Seen:
    """Codes at most one off, few of them; scales to one unit in the last place; rows of zeros without a NaN."""
    quantize, seen = data.operator("npu_dynamic_quant"), Seen()
    for count, length in ((16, 256),) if on.small else ((1, 3584), (16, 3584), (256, 18944), (2048, 2048)):
        x_MK = data.tokens(count, length, seed=26)
        wanted, wanted_scale = oracle.quantize_rows(x_MK)
        found, scale = (one.cpu() for one in quantize(on.put(x_MK)))
        apart = (found.int() - wanted.int()).abs()
        off = float(((scale - wanted_scale).abs() / wanted_scale).max())
        share, worst, name = float((apart > 0).float().mean()), int(apart.max()), f"{count} x {length}"
        seen.values[name] = {"share of codes apart": share, "largest": worst, "scales off by": off}
        seen.holds(worst <= 1 and share <= CODES_APART, f"{name}: {share:.2%} of the codes differ, by up to {worst}")
        seen.holds(off <= SCALES_APART, f"{name}: scales are off by {off:.3g} of themselves")
    zeros = quantize(torch.zeros(2, 256, dtype=torch.bfloat16, device=on.device))
    seen.values["of zeros"] = [sorted(set(part.flatten().tolist())) for part in zeros]
    seen.holds(not zeros[0].any() and bool(zeros[1].isfinite().all()), f"rows of zeros give {seen.values['of zeros']}")
    return seen


@probe("operators.products", "W8A8 products are the definition's to one unit in the last place", ("npu",))
def products(on: On) -> Seen:
    """Plain and in FRACTAL_NZ, with biases and BF16 scales, to BF16 and float16."""
    seen, product = Seen(), data.operator("npu_quant_matmul")
    for rows, length in ((96, 64), (72, 40)) if on.small else (data.SEVEN_B[0], data.SEVEN_B[3], (72, 40)):
        made, codes_NK = data.generator(42), data.integers((rows, length), 42)
        scale_N, bias_N = torch.rand(rows, generator=made) * 2e-4 + 1e-4, torch.randn(rows, generator=made)
        for count in TOKENS:
            x_MK = data.tokens(count, length, seed=43)
            x_codes_MK, x_scale_M = oracle.quantize_rows(x_MK)
            sums_MN = (x_codes_MK.double() @ codes_NK.double().T).float()
            for nz, dtype in ((False, torch.bfloat16), (True, torch.bfloat16), (True, torch.float16)):
                kinds = {"": (scale_N, None), ", bias": (scale_N, bias_N.to(dtype))}
                if dtype == torch.bfloat16:
                    kinds[", bf16 scales"] = (scale_N.to(dtype), None)
                w_KN = data.codes_there(codes_NK, nz, on)
                for kind, (scale, bias) in kinds.items():
                    found = product(
                        on.put(x_codes_MK),
                        w_KN,
                        on.put(scale),
                        pertoken_scale=on.put(x_scale_M),
                        bias=None if bias is None else on.put(bias),
                        output_dtype=dtype,
                    )
                    name = f"{count} x {length} x {rows} {'NZ' if nz else 'ND'} {dtype}{kind}"
                    _near(seen, name, found, sums_MN, x_scale_M.unsqueeze(1), scale.float(), bias)
    return seen


@probe(
    "operators.grouped_products", "grouped products of experts' rows are the definition's to one such unit", ("npu",)
)
def grouped_products(on: On) -> Seen:
    """Rows dealt out evenly, to every second expert, and to one; int32 products are exact."""
    seen, grouped = Seen(), data.operator("npu_grouped_matmul")
    (count, rows, length), tokens = ((4, 128, 64), 36) if on.small else ((8, *data.EXPERTS[0][1:]), 512)
    codes_ENK, x_MK = data.integers((count, rows, length), 51), data.tokens(tokens, length, seed=52)
    scale_EN = (torch.rand(count, rows, generator=data.generator(51)) * 2e-4 + 1e-4).to(torch.bfloat16)
    x_codes_MK, x_scale_M = oracle.quantize_rows(x_MK)
    each, last = tokens // count, torch.arange(count) == count - 1
    shares = {"even": torch.full((count,), each), "every second": 2 * each * (torch.arange(count) % 2)}
    for share, counts_E in (shares | {"one": tokens * last}).items():
        parts = zip(x_codes_MK.split(counts_E.tolist()), codes_ENK, strict=True)
        sums_MN = torch.cat([x.double() @ w_NK.double().T for x, w_NK in parts]).float()
        scale_MN = scale_EN.float().repeat_interleave(counts_E, 0)
        groups = {"group_list": on.put(counts_E), "group_list_type": 1, "group_type": 0, "split_item": 2}
        scales = {"scale": [on.put(scale_EN)], "per_token_scale": [on.put(x_scale_M)]}
        for nz in (False, True):
            given, name = (
                ([on.put(x_codes_MK)], [data.codes_there(codes_ENK, nz, on)]),
                f"{share} {'NZ' if nz else 'ND'}",
            )
            (exact,) = grouped(*given, output_dtype=torch.int32, **groups)
            seen.same(f"{name}: int32 products", exact.cpu().float(), sums_MN)
            (found,) = grouped(*given, output_dtype=torch.bfloat16, **scales, **groups)
            _near(seen, name, found, sums_MN, x_scale_M.unsqueeze(1), scale_MN)
    return seen


@probe(
    "operators.experts", "a W8A8 mixture of experts is the definition's but for rounding, both ways to SwiGLU", ("npu",)
)
def experts(on: On) -> Seen:
    """Compute a mixture by npu_dequant_swiglu_quant after a product, and by the fused operator."""
    seen = Seen()
    count, hidden, length, tokens, top = (4, 64, 64, 37, 2) if on.small else (8, 768, 2048, 256, 4)
    w13, w2 = data.weights(count, 2 * hidden, length, seed=53), data.weights(count, length, hidden, seed=54)
    x_MK, made = data.tokens(tokens, length, seed=55), data.generator(56)
    weight_MT = torch.rand(tokens, top, generator=made)
    expert_MT = torch.rand(tokens, count, generator=made).topk(top).indices
    quantized = [*oracle.quantize_weight(w13), *oracle.quantize_weight(w2)]
    wanted = oracle.experts(x_MK, weight_MT, expert_MT, *quantized).float()
    codes = [data.codes_there(one, True, on).transpose(1, 2) for one in (quantized[0], quantized[2])]
    given = [codes[0], on.put(quantized[1]), codes[1], on.put(quantized[3])]
    ways: dict[str, Callable] = {"dequant_swiglu_quant": npu_experts.experts, "fused": npu_experts.fused_experts}
    for name, served in ways.items():
        found = served(on.put(x_MK), on.put(weight_MT), on.put(expert_MT), *given).cpu().float()
        error = float((found - wanted).norm() / wanted.norm())
        seen.values[f"{name}, error of the norm"] = error
        seen.holds(error <= ERROR, f"{name}: off by {error:.3g} of the norm; rounding explains {ERROR}")
    return seen


def _near(
    seen: Seen,
    name: str,
    found: torch.Tensor,
    sums_MN: torch.Tensor,
    scale_M1: torch.Tensor,
    scale_N: torch.Tensor,
    bias_N: torch.Tensor | None = None,
) -> None:
    """A problem where a product is more than a unit in the last place off.

    Where a bias cancels a product, float32's own error shows: a unit is at least 2**-20 of the largest result.
    """
    bias, got = 0.0 if bias_N is None else bias_N.float(), found.cpu()
    tokens_first, channels_first = sums_MN * scale_M1 * scale_N + bias, sums_MN * scale_N * scale_M1 + bias
    unit = (torch.finfo(got.dtype).eps * tokens_first.abs()).clamp(min=float(tokens_first.abs().max()) * 2.0**-20)
    off = float(((got.float() - tokens_first).abs() / unit).nan_to_num(nan=float("inf")).max())
    apart = [int((got != order.to(got.dtype)).sum()) for order in (tokens_first, channels_first)]
    seen.values[name] = {"units off": off, "differ, tokens' scale first": apart[0], "channels' first": apart[1]}
    seen.holds(off <= WORST, f"{name}: off by {off:.3g} units in the last place, {apart[0]} of {got.numel()} differ")
