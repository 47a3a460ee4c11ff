"""Probes that compare ascend_quant.kernels.npu with the oracle: written bytes, statistics, layers."""

from collections.abc import Callable

import torch

from ascend_quant import oracle
from ascend_quant.kernels import npu, reciprocals
from ascend_quant.kernels.npu import ops as npu_ops
from ascend_quant.kernels.npu.refit import codes as npu_codes
from ascend_quant.kernels.npu.refit.formats import ND
from ascend_quant.kernels.npu.serve import experts as npu_experts
from ascend_quant.kernels.npu.serve import linear as npu_linear
from ascend_quant.kernels.writes import Int8Write, Job
from ascend_quant.schemes import SCHEMES
from ascend_quant.smoke.npu import data
from ascend_quant.smoke.operators import ERROR, written
from ascend_quant.smoke.probes import On, Seen, probe

UNALIGNED = ((72, 40), (33, 16), (2, 40, 24))  # shapes with padded or shared panels in FRACTAL_NZ
TOKENS = (1, 16, 256)


@probe(
    "operators.rounding",
    "codes and scales of every BF16 magnitude are the definition's, ties to even",
    ("npu",),
    limit_s=30,
)
def rounding(on: On) -> Seen:
    """Test every magnitude with the operators that refits use here, fused or elementwise."""
    way = npu_codes.way_of(on.device)
    seen = Seen({"magnitudes by": way.absmax.__name__, "codes by": way.codes.__name__})
    halves = torch.arange(-255, 256).float() / 2
    near = torch.cat([halves, *(torch.nextafter(halves, torch.full_like(halves, end)) for end in (-1e9, 1e9))])
    bits = (on.put(near) + reciprocals.MAGIC).view(torch.int32) - reciprocals.MAGIC_BITS
    seen.same("rounded by an addition", bits, near.round().to(torch.int32))
    absmax = torch.arange(0x7F80, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    columns = torch.tensor([127, 63.5, -127, -63.5, 0.5, -2.5, 31.75, 0.99], dtype=torch.float64) / 127  # with ties
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
    """Write dense weights and stacks of experts in three shards; read codes back by rows and by torch_npu."""
    import torch_npu

    seen, cast = Seen(), npu_ops.operator("npu_format_cast")
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
            seen.holds(after == before, f"{name}: address and format were {before}, and are now {after}")
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


@probe("operators.products", "W8A8 layers compute the definition's product but for rounding", ("npu",))
def products(on: On) -> Seen:
    """Compute layers as they are served, in ND and FRACTAL_NZ, with and without bias; one token is all zeros."""
    seen = Seen()
    for rows, length in ((96, 64), (72, 40)) if on.small else (data.SEVEN_B[0], data.SEVEN_B[3], (72, 40)):
        codes_NK, scale_N = oracle.quantize_weight(data.weights(rows, length, seed=42))
        bias_N = torch.randn(rows, generator=data.generator(43)).to(torch.bfloat16)
        for nz in (False, True):
            w_KN, given = data.codes_there(codes_NK, nz, on), on.put(scale_N)
            for count in TOKENS:
                x_MK = data.tokens(count + 1, length, seed=44)
                x_MK[0] = 0
                for bias in (None, bias_N):
                    wanted = oracle.matmul(x_MK, codes_NK, scale_N, bias)
                    found = npu_linear.linear(on.put(x_MK), w_KN, given, None if bias is None else on.put(bias))
                    name = f"{count + 1} x {length} x {rows} {'NZ' if nz else 'ND'}{'' if bias is None else ', bias'}"
                    _near(seen, name, found, wanted)
    return seen


@probe("operators.experts", "a W8A8 mixture of experts is the definition's but for rounding, by both ways", ("npu",))
def experts(on: On) -> Seen:
    """Compute a mixture by npu_dequant_swiglu_quant and by the fused operator; then with few experts."""
    seen = Seen()
    count, hidden, length, tokens, top = (4, 64, 64, 37, 2) if on.small else (8, 768, 2048, 256, 4)
    w13, w2 = data.weights(count, 2 * hidden, length, seed=53), data.weights(count, length, hidden, seed=54)
    x_MK, made = data.tokens(tokens, length, seed=55), data.generator(56)
    weight_MT = torch.rand(tokens, top, generator=made)
    some, few = torch.rand(tokens, count, generator=made).topk(top).indices, torch.arange(top).repeat(tokens, 1)
    quantized = [*oracle.quantize_weight(w13), *oracle.quantize_weight(w2)]
    codes = [data.codes_there(one, True, on).transpose(1, 2) for one in (quantized[0], quantized[2])]
    given = [codes[0], on.put(quantized[1]), codes[1], on.put(quantized[3])]
    ways: dict[str, Callable] = {"dequant_swiglu_quant": npu_experts.experts, "fused": npu_experts.fused_experts}
    for share, expert_MT in {"all experts": some, f"{top} experts": few}.items():
        wanted = oracle.experts(x_MK, weight_MT, expert_MT, *quantized).float()
        for name, served in ways.items():
            found = served(on.put(x_MK), on.put(weight_MT), on.put(expert_MT), *given)
            _near(seen, f"{name}, {share}", found, wanted)
    return seen


def _near(seen: Seen, name: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Record a product's error; it is a problem if rounding does not explain it, or if there is a NaN."""
    error = float((found.cpu().float() - wanted.float()).norm() / wanted.float().norm())
    seen.values[f"{name}, error of the norm"] = error
    seen.holds(error <= ERROR, f"{name}: off by {error:.3g} of the norm; rounding explains {ERROR}")
