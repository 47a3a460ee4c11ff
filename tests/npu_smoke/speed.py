"""What refits and products cost: beside a plain copy on the device, and beside BF16, in the same run."""

from collections.abc import Callable
from typing import Any

import torch

from ascend_quant.kernels import npu
from ascend_quant.kernels.moves import Job, Move
from ascend_quant.kernels.npu_formats import FRACTAL_NZ, Panels, Transposed, new_codes
from benchmarks.matrices import BYTES, shapes_of
from benchmarks.models import Model, get_model
from npu_smoke import clock, data, experts
from npu_smoke.checks import IN_SHORT, NotPossible, Setting, check, require, without_traces

ROOM = 0.7  # share of the free memory
TOKENS = (1, 64, 256, 2048)
REFIT_ROUNDS = 3
MOST_COPIES = 7  # of the BF16 weights, in the time of a refit
REFIT_S = 10.0  # a refit takes at most about: fewer layers if they are slower
Shapes = list[tuple[int, int]]


def _model(on: Setting, name: str, small: str) -> Model:
    return get_model(small if on.small else name)


def _free(on: Setting) -> float:
    return ROOM * torch.npu.mem_get_info(on.device)[0]


def _random(on: Setting, *shape: int) -> torch.Tensor:
    """BF16 on the device, drawn there."""
    return torch.empty(shape, dtype=torch.bfloat16, device=on.device).normal_(0, 0.02)


def _codes(on: Setting, *shape: int, nz: bool) -> torch.Tensor:
    return data.transposed(torch.randint(-127, 128, shape, generator=data.generator(71), dtype=torch.int8), on, nz)


@check("speed.refit_dense", needed=False, claim="seconds", limit_s=300)
def refit_dense(on: Setting, numbers: dict) -> None:
    """How fast are refits of all linear layers of a 7B model, beside a copy?"""
    model = _model(on, "qwen2.5-7b", "tiny")
    shapes = list(shapes_of(model.cut(1)).values())
    jobs = _jobs(on, [_random(on, *shape) for shape in shapes], nz=True)
    seconds = min(clock.by_host(lambda: _refit(on, jobs), 1) for _ in range(2)) / 1e3
    per_layer = 4 * sum(n * k for n, k in shapes)  # BF16, and codes in ND and in NZ
    layers = int(min(model.layers, _free(on) / per_layer, REFIT_S / seconds))
    numbers["layers"], numbers["of"] = max(1, layers), model.layers
    _refits(on, numbers, shapes * numbers["layers"])
    if on.small:
        raise NotPossible("shapes of a dry run take no time that is worth comparing")
    copies = numbers["refit NZ, in copies of its BF16"]
    require(copies <= MOST_COPIES, f"a refit takes as long as {copies:.1f} copies of its BF16 weights")


@check("speed.refit_experts", needed=False, limit_s=300)
def refit_experts(on: Setting, numbers: dict) -> None:
    """How fast are refits of one layer of Qwen3-30B-A3B, each expert's projections by themselves, beside a copy?"""
    model = _model(on, "qwen3-30b-a3b", "tiny-moe").cut(1)
    stacks = [(model.experts, 2 * model.expert_width, model.hidden), (model.experts, model.hidden, model.expert_width)]
    _refits(on, numbers, stacks)


def _refits(on: Setting, numbers: dict[str, Any], shapes: list[tuple[int, ...]]) -> None:
    sources = [_random(on, *shape) for shape in shapes]
    elements = sum(source.numel() for source in sources)
    plain, nz = (_jobs(on, sources, nz) for nz in (False, True))
    copied = _random(on, 1, 1 << (14 if on.small else 29))  # far more than a cache holds
    methods = {
        "copy": _copy_of(copied),
        "refit ND": lambda: _refit(on, plain),
        "refit NZ": lambda: _refit(on, nz),
        "refit NZ without receipt": lambda: npu.write(nz, _counters(on), receipt=False),
    }
    found = clock.compare(methods, on, REFIT_ROUNDS)
    numbers["elements"], numbers["moves"], numbers["milliseconds"] = elements, len(nz), found
    bandwidth = 4 * copied.numel() / found["copy"]["median"] / 1e6
    numbers["copy, GB/s read and written"] = bandwidth
    for name in list(methods)[1:]:
        speed = BYTES * elements / found[name]["median"] / 1e6
        numbers[f"{name}, GB/s"], numbers[f"{name}, of a copy"] = speed, speed / bandwidth
        numbers[f"{name}, in copies of its BF16"] = found[name]["median"] * bandwidth * 1e6 / (4 * elements)
    numbers[IN_SHORT] = f"NZ {numbers['refit NZ, GB/s']:.0f} GB/s, {numbers['refit NZ, of a copy']:.0%} of a copy"


def _copy_of(source: torch.Tensor) -> Callable[[], object]:
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _jobs(on: Setting, sources: list[torch.Tensor], nz: bool) -> list[Job]:
    """One write a matrix; of a stack of experts two a matrix, as gate and up projections come."""
    jobs = []
    for source in sources:
        with torch.device(on.device):
            place = new_codes((*source.shape[:-2], source.shape[-1], source.shape[-2]), nz)
        stand_in = torch.empty(place.shape, dtype=torch.int8, device="meta")
        rows_NK, scale_N = source.flatten(0, -2), torch.zeros(place.shape[0], device=on.device)
        step = source.shape[-2] if source.dim() == 2 else source.shape[-2] // 2
        for first in range(0, place.shape[0], step):
            part = slice(first, first + step)
            move = Move.of(rows_NK[part], stand_in[part], scale_N[part], first_row=first, place=place)
            jobs.append(Job.of(move, rows_NK[part]))
    return jobs


def _refit(on: Setting, jobs: list[Job]) -> None:
    counters = _counters(on)
    npu.write(jobs, counters)
    counters.read()


def _counters(on: Setting) -> npu.Counters:
    counters = npu.Counters(on.device)
    counters.new_slots()
    return counters


@check("speed.parts_of_a_refit", needed=False)
def parts_of_a_refit(on: Setting, numbers: dict) -> None:
    """What of a refit costs most?"""
    n, k = (256, 128) if on.small else (2304, 3584)
    x_NK, scale_N = _random(on, n, k), torch.ones(n, device=on.device)
    codes_NK = data.transposed(torch.zeros(k, n, dtype=torch.int8), on, nz=False)
    with torch.device(on.device):
        plain, panels = new_codes((k, n), nz=False), new_codes((k, n), nz=True)
    methods = {
        "copy": _copy_of(x_NK),
        "absmax": lambda: x_NK.abs().amax(-1),
        "finite": lambda: (~torch.isfinite(x_NK)).sum(1),
        "codes and scales": lambda: npu._quantized(x_NK, None),
        "digest": lambda: npu.digests([codes_NK, scale_N]),
        "into ND": lambda: plain.write(0, codes_NK),
        "into NZ": lambda: panels.write(0, codes_NK),
    }
    numbers["elements"], numbers["milliseconds"] = n * k, clock.compare(methods, on)


@check("speed.panels", needed=False, limit_s=300)
def panels(on: Setting, numbers: dict) -> None:
    """Are strided writes into FRACTAL_NZ panels faster than casting the whole tensor?"""
    import torch_npu

    for n, k in [(96, 64)] if on.small else [(4608, 3584), (37888, 3584), (3584, 18944)]:
        codes_NK = data.transposed(torch.zeros(k, n, dtype=torch.int8), on, nz=False)
        with torch.device(on.device):
            plain, place = new_codes((k, n), nz=False), new_codes((k, n), nz=True)
        methods = {"copy": _copy_of(codes_NK), **_writes(codes_NK, plain, place, torch_npu.npu_format_cast)}
        numbers[f"{n} x {k}"] = found = clock.compare(methods, on)
        for one in found.values():
            one["GB/s"] = 2 * n * k / one["median"] / 1e6


def _writes(codes_NK: torch.Tensor, plain: Transposed, place: Panels, cast: Callable) -> dict[str, Callable]:
    """Ways to get codes (N, K) to where the engine computes with them."""
    count, length = codes_NK.shape
    memory_PKC = place._panels_EPKC[0]  # whole panels: all shapes here are multiples of 32 and 16
    third = count // 3 // 32 * 32
    return {
        "strided into ND": lambda: plain.write(0, codes_NK),
        "strided into panels": lambda: place.write(0, codes_NK),
        "a third, strided into panels": lambda: place.write(third, codes_NK[:third]),
        "a third, ragged": lambda: place.write(third + 5, codes_NK[:third]),
        "panels made contiguous, then copied": lambda: memory_PKC.copy_(
            codes_NK.view(-1, 32, length).transpose(1, 2).contiguous()
        ),
        "transposed, then cast to NZ and copied": lambda: place.tensor.copy_(
            cast(codes_NK.t().contiguous(), FRACTAL_NZ)
        ),
        "transposed": lambda: codes_NK.t().contiguous(),
        "read back from panels": lambda: place[:],
    }


@check("speed.linear_7b", needed=False, limit_s=300)
def linear_7b(on: Setting, numbers: dict) -> None:
    """How fast are W8A8 layers of a 7B model, beside BF16?"""
    _linears(on, numbers, [(192, 128)] if on.small else [(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)])


@check("speed.linear_30b_a3b", needed=False, limit_s=300)
def linear_30b(on: Setting, numbers: dict) -> None:
    """How fast are W8A8 attention projections of Qwen3-30B-A3B, beside BF16?"""
    _linears(on, numbers, [(192, 128)] if on.small else [(5120, 2048), (2048, 4096)])


def _linears(on: Setting, numbers: dict[str, Any], shapes: Shapes) -> None:
    quant, multiply = data.operator("npu_dynamic_quant"), data.operator("npu_quant_matmul")
    for n, k in shapes:
        w_NK, scale_N = _random(on, n, k), torch.full((n,), 1e-4, device=on.device)
        plain, nz = (_codes(on, n, k, nz=nz) for nz in (False, True))
        for count in TOKENS[:2] if on.small else TOKENS:
            x_MK = _random(on, count, k)
            codes, scale = quant(x_MK)

            def product(codes, scale, weight, scale_N=scale_N):
                return multiply(codes, weight, scale_N, pertoken_scale=scale, output_dtype=torch.bfloat16)

            methods = {
                "bf16": lambda x=x_MK, w=w_NK: torch.nn.functional.linear(x, w),
                "quant": lambda x=x_MK: quant(x),
                "product ND": lambda c=codes, s=scale, w=plain, product=product: product(c, s, w),
                "product NZ": lambda c=codes, s=scale, w=nz, product=product: product(c, s, w),
                "quant and product NZ": lambda x=x_MK, w=nz, product=product: product(*quant(x), w),
            }
            _note(on, numbers, f"{count} x {k} x {n}", methods, "quant and product NZ")


@check("speed.experts_30b_a3b", needed=False, limit_s=300)
def experts_30b(on: Setting, numbers: dict) -> None:
    """How fast are int8 grouped products of Qwen3-30B-A3B's experts, beside BF16?"""
    model = _model(on, "qwen3-30b-a3b", "tiny-moe")
    count = 4 if on.small else model.experts
    for n, k in ((2 * model.expert_width, model.hidden), (model.hidden, model.expert_width)):
        w_EKN = _random(on, count, k, n)
        plain, nz = (_codes(on, count, n, k, nz=nz) for nz in (False, True))
        scales = [torch.full((count, n), 1e-4, dtype=torch.bfloat16, device=on.device)]
        for tokens in TOKENS[:2] if on.small else TOKENS:
            rows = tokens * model.top_k
            chosen = torch.randint(0, count, (rows,), generator=data.generator(72))
            counts = on.put(torch.bincount(chosen, minlength=count))
            x_MK = _random(on, rows, k)
            codes, scale = data.operator("npu_dynamic_quant")(x_MK)

            def int8(weight, codes=codes, scale=scale, counts=counts, scales=scales):
                more = {"scale": scales, "per_token_scale": [scale], "output_dtype": torch.bfloat16}
                return experts.grouped(on, codes, weight, counts, **more)

            methods = {
                "bf16": lambda x=x_MK, w=w_EKN, c=counts: experts.grouped(on, x, w, c),
                "product ND": lambda w=plain, int8=int8: int8(w),
                "product NZ": lambda w=nz, int8=int8: int8(w),
            }
            _note(on, numbers, f"{count} experts, {tokens} tokens, {rows} x {k} x {n}", methods, "product NZ")


def _note(on: Setting, numbers: dict[str, Any], name: str, methods: dict[str, Callable], ours: str) -> None:
    """Eager and, where it can be, captured milliseconds, and how many times faster than BF16."""
    found = {"eager": clock.compare(methods, on)}
    try:
        found["captured"] = clock.compare_captured(methods, on)
    except Exception as why:  # the eager figures are worth having all the same
        numbers["captured"] = without_traces(f"{type(why).__name__}: {why}")
    for kind, milliseconds in found.items():
        times = milliseconds["bf16"]["median"] / milliseconds[ours]["median"]
        numbers[f"{name}, {kind}"] = {"milliseconds": milliseconds, f"bf16 / {ours}": times}
        numbers[IN_SHORT] = f"{name}, {kind}: {times:.2f} x BF16"
