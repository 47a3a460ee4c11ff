"""Probes of what ascend_quant.kernels.npu writes and counts, bit by bit, and of npu_dynamic_quant's rounding."""

import torch

from ascend_quant import oracle
from ascend_quant.kernels import npu, npu_codes, reciprocals
from ascend_quant.kernels.moves import Job, Move
from ascend_quant.kernels.npu_formats import ND
from ascend_quant.schemes import SCHEMES
from ascend_quant.smoke.npu import data
from ascend_quant.smoke.operators import written
from ascend_quant.smoke.probes import On, Seen, probe

UNALIGNED = ((72, 40), (33, 16), (2, 40, 24))  # where FRACTAL_NZ is padded and panels are shared
CODES_APART, SCALES_APART = 0.01, 2.0**-22  # of activations: the operator multiplies where the definition divides


@probe("operators.rounding", "codes and scales of every BF16 magnitude are the definition's, ties to even", ("npu",))
def rounding(on: On) -> Seen:
    """By the way that refits take here, fused or plain; and what both rest on."""
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
    "operators.codes", "a refit writes the definition's bytes, plain and in FRACTAL_NZ, at the same address", ("npu",)
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


@probe("operators.not_finite", "a NaN or Inf is counted by the tensor that it came in", ("npu",))
def not_finite(on: On) -> Seen:
    n, k = (96, 64) if on.small else data.SEVEN_B[0]
    sources = [data.weights(n, k, seed=23 + number) for number in range(3)]
    sources[0][3, 5], sources[2][n - 1, :7], sources[2][0, k - 1] = float("nan"), float("-inf"), float("inf")
    counters, scales, jobs = npu.Counters(on.device), [], []
    for slot, source in enumerate(sources):
        there, target, scale = on.put(source), on.put(torch.zeros(n, k, dtype=torch.int8)), on.put(torch.zeros(n))
        jobs.append(Job.of(Move.of(there, target, scale), there, slot))
        scales.append(scale)
    counters.new_slots(len(jobs))
    npu.write(jobs, counters)
    found, seen = counters.read()[2], Seen()
    bad = [(~torch.isfinite(scale.cpu())).nonzero().flatten().tolist() for scale in scales]
    seen.values |= {"rows counted, by tensor": found, "rows with a scale that is not finite": bad}
    seen.holds(found == {0: 1, 2: 2}, f"counted {found}: tensor 0 has one row that is not finite, tensor 2 has two")
    seen.holds(bad == [[3], [], [0, n - 1]], f"rows with a scale that is not finite: {bad}")
    return seen


@probe("operators.activations", "npu_dynamic_quant rounds half to even, but for a product's last bit", ("npu",))
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
